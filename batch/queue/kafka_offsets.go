package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// read reads what is committed of the partitions that need it. commit is locked.
func (k *Kafka) read(ctx context.Context) error {
	k.mu.Lock()
	var want []int32
	for i, p := range k.partitions {
		if p.unread {
			want = append(want, i)
		}
	}
	k.mu.Unlock()
	if len(want) == 0 {
		return nil
	}
	committed, err := k.committed(ctx, want)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range committed {
		if p := k.partitions[c.Partition]; p != nil {
			text := ""
			if c.Metadata != nil {
				text = *c.Metadata
			}
			p.restore(c.Offset, text)
		}
	}
	return nil
}

// committed returns what is committed of partitions, when no transaction is about to change it.
func (k *Kafka) committed(ctx context.Context, partitions []int32) ([]kmsg.OffsetFetchResponseTopicPartition, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.RequireStable = k.group(), true
	t := kmsg.NewOffsetFetchRequestTopic()
	t.Topic, t.Partitions = k.cfg.Queue, partitions
	req.Topics = append(req.Topics, t)
	answer, err := req.RequestWith(ctx, k.client)
	if err == nil {
		err = kerr.ErrorForCode(answer.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the offsets of %s: %w", k.cfg.Queue, err)
	}
	var all []kmsg.OffsetFetchResponseTopicPartition
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, fmt.Errorf("reading the offsets of %s: %w", k.cfg.Queue, err)
			}
			all = append(all, p)
		}
	}
	return all, nil
}

// note commits what is claimed of some partitions. commit is locked.
func (k *Kafka) note(ctx context.Context, consumer *kgo.Client, partitions []int32) error {
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic = k.cfg.Queue
	k.mu.Lock()
	for _, i := range partitions {
		if p := k.partitions[i]; p != nil && p.next >= 0 {
			low := p.low(nil)
			text := p.state(low, nil)
			one := kmsg.NewOffsetCommitRequestTopicPartition()
			one.Partition, one.Offset, one.Metadata = i, low, &text
			t.Partitions = append(t.Partitions, one)
		}
	}
	k.mu.Unlock()
	if len(t.Partitions) == 0 {
		return nil
	}
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = k.group()
	req.MemberID, req.Generation = consumer.GroupMetadata()
	req.Topics = append(req.Topics, t)
	answer, err := req.RequestWith(ctx, k.client)
	if err != nil {
		return err
	}
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if err := committing(p.ErrorCode); err != nil {
				return err
			}
		}
	}
	return nil
}

// committing reads the answer to a commit.
func committing(code int16) error {
	err := kerr.ErrorForCode(code)
	for _, moved := range []error{kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.RebalanceInProgress, kerr.FencedInstanceID} {
		if errors.Is(err, moved) {
			return errAgain
		}
	}
	return err
}

// Waiting implements Source.
func (k *Kafka) Waiting(ctx context.Context) (int64, error) { return k.lag(ctx, true) }

// lag counts the messages that are not finished, or that no process has claimed. Records that are none, such as the ends of transactions, count too.
func (k *Kafka) lag(ctx context.Context, claimed bool) (n int64, err error) {
	ends, err := k.edges(ctx, -1)
	if err != nil {
		return 0, err
	}
	committed, err := k.committed(ctx, slices.Collect(maps.Keys(ends)))
	if err != nil {
		return 0, err
	}
	var starts map[int32]int64
	for _, c := range committed {
		at := c.Offset
		if at < 0 {
			if starts == nil {
				if starts, err = k.edges(ctx, -2); err != nil {
					return 0, err
				}
			}
			at = starts[c.Partition]
		}
		if claimed && c.Metadata != nil {
			first, _, _ := strings.Cut(*c.Metadata, ";")
			span, _ := strconv.ParseInt(strings.TrimPrefix(first, "n="), 10, 64) // without one, nothing is claimed
			at += span
		}
		n += max(0, ends[c.Partition]-at)
	}
	return n, nil
}

// edges returns the last offsets of partitions (-1), or the first ones (-2).
func (k *Kafka) edges(ctx context.Context, which int64) (map[int32]int64, error) {
	about := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &k.cfg.Queue
	about.Topics = append(about.Topics, topic)
	found, err := about.RequestWith(ctx, k.client)
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.IsolationLevel = 1 // committed
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = k.cfg.Queue
	for _, topic := range found.Topics {
		for _, p := range topic.Partitions {
			one := kmsg.NewListOffsetsRequestTopicPartition()
			one.Partition, one.Timestamp = p.Partition, which
			t.Partitions = append(t.Partitions, one)
		}
	}
	req.Topics = append(req.Topics, t)
	answer, err := req.RequestWith(ctx, k.client)
	if err != nil {
		return nil, err
	}
	edges := map[int32]int64{}
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, err
			}
			edges[p.Partition] = p.Offset
		}
	}
	return edges, nil
}
