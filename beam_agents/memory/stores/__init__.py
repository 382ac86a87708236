"""memory/stores"""
