// A stock Kafka Streams application with one of several topologies.
// StreamsApp TOPOLOGY INPUT[,INPUT] OUTPUT key=value...   It ends with its stdin.

import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;

public class StreamsApp {
    private static final Duration WINDOW = Duration.ofMillis(50);

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        for (int at = 3; at < args.length; at++) {
            String[] setting = args[at].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        build(builder, args[0], args[1].split(","), args[2]);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> System.out.println("STATE " + now));
        streams.setUncaughtExceptionHandler(error -> {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                System.out.println("FAILED " + cause.getClass().getName() + ": " + cause.getMessage());
            }
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        while (System.in.read() >= 0) {
        }
        streams.close(Duration.ofSeconds(20));
    }

    private static void build(StreamsBuilder builder, String topology, String[] inputs, String output) {
        KStream<String, String> made = switch (topology) {
            case "pass" -> stream(builder, inputs[0]);
            case "count" -> count(stream(builder, inputs[0]));
            case "count-rounds" ->
                count(stream(builder, inputs[0]).selectKey((key, value) -> value.split(":")[1]));
            case "merge" -> stream(builder, inputs[0]).merge(stream(builder, inputs[1]));
            case "join-window" -> stream(builder, inputs[0]).join(
                stream(builder, inputs[1]), StreamsApp::both,
                JoinWindows.ofTimeDifferenceAndGrace(WINDOW, WINDOW));
            case "join-table" ->
                stream(builder, inputs[0]).leftJoin(table(builder, inputs[1]), StreamsApp::both);
            case "join-repartitioned" -> stream(builder, inputs[0]).repartition()
                .leftJoin(table(builder, inputs[1]), StreamsApp::both);
            case "join-global" -> stream(builder, inputs[0]).leftJoin(
                builder.<String, String>globalTable(inputs[1]), (key, value) -> key, StreamsApp::both);
            case "join-foreign" -> table(builder, inputs[0]).join(
                table(builder, inputs[1]), value -> "key-" + value.split(" ")[1], StreamsApp::both).toStream();
            default -> throw new IllegalArgumentException(topology);
        };
        made.to(output);
    }

    private static KStream<String, String> stream(StreamsBuilder builder, String topic) {
        return builder.stream(topic);
    }

    private static KTable<String, String> table(StreamsBuilder builder, String topic) {
        return builder.table(topic);
    }

    private static KStream<String, String> count(KStream<String, String> stream) {
        return stream.groupByKey().count().toStream().mapValues(String::valueOf);
    }

    private static String both(String mine, String theirs) {
        return mine + "+" + theirs;
    }
}
