// A member of segmentio's kafka-go: its Reader, which fetches each lane over a connection of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"keylane/clients/member"
)

const subscribed = "subscribed to topics and partitions"

var lane = regexp.MustCompile(`partition:(\d+)}`)

// note reports assignments: the Reader names them in its log only.
func note(format string, args ...any) {
	if !strings.HasPrefix(format, subscribed) {
		return
	}
	lanes := []int32{}
	for _, found := range lane.FindAllStringSubmatch(fmt.Sprintf(format, args...), -1) {
		number, err := strconv.ParseInt(found[1], 10, 32)
		if err != nil {
			panic(err)
		}
		lanes = append(lanes, int32(number))
	}
	member.Assigned(lanes, true)
}

// take returns the next record and those that are at hand behind it.
func take(ctx context.Context, reader *kafka.Reader) ([]kafka.Message, error) {
	first, err := reader.FetchMessage(ctx)
	if err != nil {
		return nil, err
	}
	taken := []kafka.Message{first}
	soon, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	defer cancel()
	for len(taken) < member.Batch {
		next, err := reader.FetchMessage(soon)
		if err != nil {
			break
		}
		taken = append(taken, next)
	}
	return taken, nil
}

func main() {
	options := member.Parse()
	ctx, cancel := member.UntilTerminated()
	defer cancel()
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers:           []string{options.Bootstrap},
		GroupID:           options.Group,
		Topic:             options.Topic,
		StartOffset:       kafka.FirstOffset,
		SessionTimeout:    options.Session,
		HeartbeatInterval: options.Session / 10,
		JoinGroupBackoff:  time.Second,
		Logger:            kafka.LoggerFunc(note),
		ErrorLogger: kafka.LoggerFunc(func(format string, args ...any) {
			fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05.000 ")+format+"\n", args...)
		}),
	})
	for ctx.Err() == nil {
		messages, err := take(ctx, reader)
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				member.Failed(err)
			}
			continue
		}
		records := make([]member.Record, len(messages))
		offsets := map[int32]int64{}
		for i, m := range messages {
			records[i] = member.Record{Lane: int32(m.Partition), Offset: m.Offset, Key: m.Key, Value: m.Value}
			offsets[int32(m.Partition)] = m.Offset + 1
		}
		member.Processed(records)
		// Not `ctx`: what was processed is committed before the end, too.
		if err := reader.CommitMessages(context.Background(), messages...); err != nil {
			member.CommitFailed(err)
			continue
		}
		member.Committed(offsets)
	}
	member.Left()
	if err := reader.Close(); err != nil {
		member.Failed(err)
	}
}
