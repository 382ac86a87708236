import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.metrics.Counter;
import org.apache.flink.metrics.Gauge;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.DiscardingSink;

/**
 * A job on Flink's own cluster in one process, whose operator registers metrics as Beam's Flink runner does: named
 * namespace, dot, name; counters as counters, gauges as gauges of a Long, distributions as gauges of an object.
 *
 * <p>Arguments: the reporter's port; a file with lines of a kind and a name.
 */
public class FlinkPage {
  static class Agent extends RichMapFunction<Long, Long> {
    private final List<String> lines;
    private transient Counter[] counters;

    Agent(List<String> lines) {
      this.lines = lines;
    }

    @Override
    public void open(Configuration configuration) {
      MetricGroup group = getRuntimeContext().getMetricGroup();
      counters =
          lines.stream()
              .filter(line -> line.startsWith("counter "))
              .map(line -> group.counter(line.split(" ")[1]))
              .toArray(Counter[]::new);
      for (String line : lines) {
        String name = line.split(" ")[1];
        if (line.startsWith("gauge ")) {
          group.gauge(name, (Gauge<Long>) () -> 3L);
        } else if (line.startsWith("distribution ")) {
          group.gauge(name, (Gauge<Object>) Object::new);
        }
      }
    }

    @Override
    public Long map(Long number) throws Exception {
      for (Counter counter : counters) {
        counter.inc();
      }
      Thread.sleep(10);
      return number;
    }
  }

  public static void main(String[] arguments) throws Exception {
    Configuration configuration = new Configuration();
    String reporter = "metrics.reporter.prom.";
    configuration.setString(
        reporter + "factory.class", "org.apache.flink.metrics.prometheus.PrometheusReporterFactory");
    configuration.setString(reporter + "port", arguments[0]);
    configuration.setString(reporter + "filterLabelValueCharacters", "false");
    StreamExecutionEnvironment environment =
        StreamExecutionEnvironment.createLocalEnvironment(1, configuration);
    environment
        .fromSequence(0, Long.MAX_VALUE)
        .keyBy(number -> number % 10)
        .map(new Agent(Files.readAllLines(Path.of(arguments[1]))))
        .name("[2]{score, Map(print)}")
        .addSink(new DiscardingSink<>());
    environment.execute("flights");
  }
}
