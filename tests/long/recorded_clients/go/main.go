package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func franz(b, t1, t2, g string) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(b), kgo.ConsumerGroup(g), kgo.ConsumeRegex(), kgo.ConsumeTopics(t1+".*"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.ClientID("franz-go"))
	if err != nil {
		panic(err)
	}
	ctx, c := context.WithTimeout(context.Background(), 20*time.Second)
	defer c()
	if r := cl.ProduceSync(ctx, &kgo.Record{Topic: t1, Value: []byte("v")}); r.FirstErr() != nil {
		panic(r.FirstErr())
	}
	n := 0
	for n < 1 {
		f := cl.PollFetches(ctx)
		if f.Err() != nil {
			panic(f.Err())
		}
		n += f.NumRecords()
	}
	if err := cl.CommitUncommittedOffsets(ctx); err != nil {
		panic(err)
	}
	ad := kadm.NewClient(cl)
	ids, err := ad.ListTopics(ctx, t1, t2)
	if err != nil {
		panic(err)
	}
	var l []kadm.TopicID
	for _, t := range ids {
		l = append(l, t.ID)
	}
	ad.Metadata(ctx)
	ad.ListEndOffsets(ctx, t1)
	ad.ListOffsetsAfterMilli(ctx, 1, t1)
	ad.DescribeTopicConfigs(ctx, t1)
	ad.FetchOffsets(ctx, g)
	ad.DescribeGroups(ctx, g)
	ad.OffsetForLeaderEpoch(ctx, kadm.OffsetForLeaderEpochRequest{})
	cl.Close()
	fmt.Println("franz-go", n)
}

func sar(b, t1, g string) {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.ClientID = "sarama"
	c.Producer.Return.Successes = true
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	p, err := sarama.NewSyncProducer([]string{b}, c)
	if err != nil {
		panic(err)
	}
	if _, _, err = p.SendMessage(&sarama.ProducerMessage{Topic: t1, Value: sarama.StringEncoder("v")}); err != nil {
		panic(err)
	}
	p.Close()
	cg, err := sarama.NewConsumerGroup([]string{b}, g, c)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	cg.Consume(ctx, []string{t1}, &h{cancel})
	cg.Close()
	ad, err := sarama.NewClusterAdmin([]string{b}, c)
	if err != nil {
		panic(err)
	}
	ad.ListTopics()
	ad.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: t1})
	ad.ListConsumerGroupOffsets(g, map[string][]int32{t1: {0}})
	ad.ListConsumerGroupOffsets(g, nil)
	ad.DescribeCluster()
	ad.DeleteConsumerGroupOffset(g, t1, 0)
	ad.DeleteConsumerGroup(g)
	ad.Close()
	fmt.Println("sarama")
}

type h struct{ stop func() }

func (*h) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*h) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (x *h) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	for m := range c.Messages() {
		s.MarkMessage(m, "")
		s.Commit()
		x.stop()
		return nil
	}
	return nil
}

func main() {
	a := os.Args
	if a[1] == "franz" {
		franz(a[2], a[3], a[4], a[5])
	} else {
		sar(a[2], a[3], a[5])
	}
}
