// A member of franz-go. It commits what it has processed before partitions may go to others.
package main

import (
	"context"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"keylane/clients/member"
)

// The bound of a commit where no broker takes it.
const commitTime = 30 * time.Second

func lanes(topics map[string][]int32) []int32 {
	found := []int32{}
	for _, partitions := range topics {
		found = append(found, partitions...)
	}
	return found
}

func newClient(options member.Options) (*kgo.Client, error) {
	revoked := func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
		member.Revoked(lanes(topics))
	}
	settings := []kgo.Opt{
		kgo.SeedBrokers(options.Bootstrap),
		kgo.ConsumerGroup(options.Group),
		kgo.ConsumeTopics(options.Topic),
		kgo.ClientID(options.Name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
			member.Assigned(lanes(topics), false)
		}),
		kgo.OnPartitionsRevoked(revoked),
		kgo.OnPartitionsLost(revoked),
	}
	if options.Protocol == "consumer" {
		settings = append(settings, kgo.ServerSideBalancer())
	} else {
		settings = append(settings, kgo.SessionTimeout(options.Session), kgo.HeartbeatInterval(options.Session/10))
	}
	return kgo.NewClient(settings...)
}

func commit(client *kgo.Client, taken []*kgo.Record) {
	offsets := map[int32]int64{}
	for _, record := range taken {
		offsets[record.Partition] = max(offsets[record.Partition], record.Offset+1)
	}
	// Not the context of the member's life: what was processed is committed before the end, too.
	ctx, cancel := context.WithTimeout(context.Background(), commitTime)
	defer cancel()
	if err := client.CommitRecords(ctx, taken...); err != nil {
		member.CommitFailed(err)
		return
	}
	member.Committed(offsets)
}

func main() {
	options := member.Parse()
	ctx, cancel := member.UntilTerminated()
	defer cancel()
	client, err := newClient(options)
	if err != nil {
		member.Failed(err)
		os.Exit(1)
	}
	for ctx.Err() == nil {
		fetches := client.PollRecords(ctx, member.Batch)
		fetches.EachError(func(_ string, _ int32, err error) {
			if ctx.Err() == nil {
				member.Failed(err)
			}
		})
		if taken := fetches.Records(); len(taken) > 0 {
			records := make([]member.Record, len(taken))
			for i, r := range taken {
				records[i] = member.Record{Lane: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value}
			}
			member.Processed(records)
			commit(client, taken)
		}
		client.AllowRebalance()
	}
	member.Left()
	client.CloseAllowingRebalance()
}
