// A KIP-848 member whose pattern the broker resolves: it learns topics by their ids alone.
// java -cp <Kafka's jars> PatternMember.java BOOTSTRAP PREFIX GROUP

import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.serialization.StringDeserializer;

public class PatternMember {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("client.id", "java");
        try (Admin admin = Admin.create(settings)) {
            Set<Uuid> ids = new HashSet<>();
            admin.describeTopics(List.of(args[1] + "a", args[1] + "b")).allTopicNames().get()
                .values().forEach(topic -> ids.add(topic.topicId()));
            admin.describeTopics(TopicCollection.ofTopicIds(ids)).allTopicIds().get();
        }
        settings.put("group.id", args[2]);
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        StringDeserializer text = new StringDeserializer();
        Set<String> seen = new HashSet<>();
        try (KafkaConsumer<String, String> member = new KafkaConsumer<>(settings, text, text)) {
            member.subscribe(new SubscriptionPattern(args[1] + ".*"));
            long until = System.currentTimeMillis() + 30_000;
            while (seen.size() < 2 && System.currentTimeMillis() < until) {
                member.poll(Duration.ofMillis(200)).forEach(record -> seen.add(record.topic()));
            }
            member.commitSync();
        }
        System.out.println(String.join(" ", new java.util.TreeSet<>(seen)));
    }
}
