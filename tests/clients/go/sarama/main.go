// A member of Sarama: its ConsumerGroup, which works on each lane in a goroutine.
package main

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"keylane/clients/member"
)

// Sarama reports a refused commit on a channel, after Commit has returned. A commit counts as done
// when this time has gone by without a refusal of any.
const refusalTime = 300 * time.Millisecond

// A wait between two sessions that failed.
const pause = 500 * time.Millisecond

type handler struct {
	committing sync.Mutex
	refusals   atomic.Int64
}

// pending is a commit whose refusal may still come.
type pending struct {
	offset, refusals int64
	at               time.Time
}

func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	lanes := []int32{}
	for _, claimed := range session.Claims() {
		lanes = append(lanes, claimed...)
	}
	member.Assigned(lanes, true)
	return nil
}

func (h *handler) Cleanup(session sarama.ConsumerGroupSession) error {
	lanes := []int32{}
	for _, claimed := range session.Claims() {
		lanes = append(lanes, claimed...)
	}
	member.Revoked(lanes)
	return nil
}

// settle reports the latest commit that was not refused in time, and returns those still to come.
func (h *handler) settle(lane int32, waiting []pending) []pending {
	refusals := h.refusals.Load()
	done := int64(-1)
	for len(waiting) > 0 && time.Since(waiting[0].at) >= refusalTime {
		if waiting[0].refusals == refusals {
			done = waiting[0].offset
		}
		waiting = waiting[1:]
	}
	if done >= 0 {
		member.Committed(map[int32]int64{lane: done})
	}
	return waiting
}

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	lane := claim.Partition()
	waiting := []pending{}
	for {
		waiting = h.settle(lane, waiting)
		select {
		case <-session.Context().Done():
			return nil
		case <-time.After(refusalTime):
		case first, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			taken := take(first, claim)
			member.Processed(taken)
			offset := taken[len(taken)-1].Offset + 1
			refusals := h.refusals.Load()
			h.committing.Lock()
			session.MarkOffset(claim.Topic(), lane, offset, "")
			session.Commit()
			h.committing.Unlock()
			waiting = append(waiting, pending{offset, refusals, time.Now()})
		}
	}
}

// take returns a record and those that are at hand behind it.
func take(next *sarama.ConsumerMessage, claim sarama.ConsumerGroupClaim) []member.Record {
	taken := []member.Record{}
	for next != nil {
		taken = append(taken, member.Record{Lane: next.Partition, Offset: next.Offset, Key: next.Key, Value: next.Value})
		next = nil
		if len(taken) < member.Batch {
			select {
			case next = <-claim.Messages(): // nil once it is closed
			default:
			}
		}
	}
	return taken
}

func newGroup(options member.Options) (sarama.ConsumerGroup, error) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.ClientID = options.Name
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = options.Session
	config.Consumer.Group.Heartbeat.Interval = options.Session / 10
	return sarama.NewConsumerGroup([]string{options.Bootstrap}, options.Group, config)
}

func main() {
	options := member.Parse()
	ctx, cancel := member.UntilTerminated()
	defer cancel()
	group, err := newGroup(options)
	if err != nil {
		member.Failed(err)
		os.Exit(1)
	}
	h := &handler{}
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		for err := range group.Errors() {
			h.refusals.Add(1)
			member.Failed(err)
		}
	}()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{options.Topic}, h); err != nil {
			member.Failed(err)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
	member.Left()
	if err := group.Close(); err != nil {
		member.Failed(err)
	}
	<-reported
}
