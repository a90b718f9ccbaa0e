// Package member has what the members of all Go clients share: their options, and their reports.
package member

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Batch is the most records that a member takes before it commits.
const Batch = 50

// Options are what a test gives a member.
type Options struct {
	Bootstrap, Topic, Group, Name, Protocol string
	Session                                 time.Duration
}

// Parse reads the command line.
func Parse() Options {
	var options Options
	flag.StringVar(&options.Bootstrap, "bootstrap", "", "address")
	flag.StringVar(&options.Topic, "topic", "", "topic")
	flag.StringVar(&options.Group, "group", "", "group")
	flag.StringVar(&options.Name, "name", "", "client id")
	flag.StringVar(&options.Protocol, "protocol", "classic", "classic or consumer")
	session := flag.Int("session-timeout-ms", 10_000, "session time-out")
	flag.Parse()
	options.Session = time.Duration(*session) * time.Millisecond
	return options
}

// UntilTerminated returns a context that ends with SIGTERM.
func UntilTerminated() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM)
}

// Record is one that was processed.
type Record struct {
	Lane       int32
	Offset     int64
	Key, Value []byte
}

// MarshalJSON writes [lane, offset, key, value].
func (record Record) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{record.Lane, record.Offset, string(record.Key), string(record.Value)})
}

var writing sync.Mutex

func report(event string, values map[string]any) {
	values["event"] = event
	writing.Lock()
	defer writing.Unlock()
	// Milliseconds of the wall clock, read under the lock: lines are in the order of their times.
	values["timestamp"] = float64(time.Now().UnixMicro()) / 1000
	line, err := json.Marshal(values)
	if err != nil {
		panic(err)
	}
	// One write, at once: a killed member must not have reported less than it committed.
	if _, err := os.Stdout.Write(append(line, '\n')); err != nil {
		os.Exit(1) // nothing reads the reports any more
	}
}

// Assigned reports that lanes came. "whole": they are all that the member has, not an addition.
func Assigned(lanes []int32, whole bool) {
	report("assigned", map[string]any{"lanes": lanes, "whole": whole})
}

// Revoked reports that lanes went.
func Revoked(lanes []int32) { report("revoked", map[string]any{"lanes": lanes}) }

// Processed reports records; before they are committed.
func Processed(records []Record) {
	if len(records) > 0 {
		report("records", map[string]any{"records": records})
	}
}

// Committed reports offsets that the coordinator has confirmed.
func Committed(offsets map[int32]int64) {
	if len(offsets) > 0 {
		report("committed", map[string]any{"offsets": offsets})
	}
}

// CommitFailed reports a commit that may not have been done.
func CommitFailed(err error) { report("commit_failed", map[string]any{"error": err.Error()}) }

// Failed reports an error after which the member goes on.
func Failed(err error) { report("failed", map[string]any{"error": err.Error()}) }

// Left reports that no record follows.
func Left() { report("left", map[string]any{}) }
