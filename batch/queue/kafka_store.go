package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// finish is a message whose result is to be stored.
type finish struct {
	partition int32
	offset    int64
	records   []*kgo.Record // the result, and a dead letter if there is one
	done      chan error    // holds one
}

// finishAll stores results until the end.
func (k *Kafka) finishAll() {
	for {
		var all []*finish
		select {
		case f := <-k.finishes:
			all = append(all, f)
		case <-k.ending:
			return
		}
		for more := true; more && len(all) < kafkaTogether; {
			select {
			case f := <-k.finishes:
				all = append(all, f)
			default:
				more = false
			}
		}
		k.store(all)
	}
}

// store stores results, and tells how it went.
func (k *Kafka) store(all []*finish) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*kafkaTimeout)
	defer cancel()
	k.commit.Lock()
	defer k.commit.Unlock()
	err := k.fence(ctx)
	if err == nil {
		err = k.read(ctx)
	}
	if err != nil {
		for _, f := range all {
			f.done <- err
		}
		return
	}
	all, ending := k.owned(all)
	if len(all) == 0 {
		return
	}
	large, err := k.transact(ctx, all, ending)
	if err == nil {
		k.finished(ending)
	}
	for i, f := range all {
		if large[i] {
			f.done <- errLarge
		} else {
			f.done <- err
		}
	}
}

// fence makes the client of transactions if there is none. Getting its producer id ends a transaction of the last client, one way or the other:
// what is committed then says whether its results are stored.
func (k *Kafka) fence(ctx context.Context) error {
	if k.producer != nil {
		return nil
	}
	client, err := k.newClient(kgo.TransactionalID(k.txn), kgo.TransactionTimeout(kafkaTransaction), kgo.RecordDeliveryTimeout(kafkaTimeout), kgo.ProducerLinger(0),
		kgo.ConcurrentTransactionsBackoff(kafkaBackoff))
	if err != nil {
		return err
	}
	if _, _, err := client.ProducerID(ctx); err != nil {
		client.Close()
		return fmt.Errorf("opening transactions: %w", err)
	}
	k.producer = client
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.partitions {
		p.unread = true
	}
	return nil
}

// owned returns those whose messages are this process's, and their offsets by partition. To the others it tells how they went.
func (k *Kafka) owned(all []*finish) (ours []*finish, ending map[int32]map[int64]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ending = map[int32]map[int64]bool{}
	for _, f := range all {
		p := k.partitions[f.partition]
		switch {
		case p == nil || p.held[f.offset] == nil:
			f.done <- ErrLost
		case f.offset < p.next || p.done[f.offset]:
			delete(p.held, f.offset)
			f.done <- nil // by a transaction whose end was not known
		default:
			if ending[f.partition] == nil {
				ending[f.partition] = map[int64]bool{}
			}
			ending[f.partition][f.offset] = true
			ours = append(ours, f)
		}
	}
	return ours, ending
}

// finished notes offsets whose results are stored.
func (k *Kafka) finished(ending map[int32]map[int64]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, offsets := range ending {
		p := k.partitions[i]
		if p == nil {
			continue
		}
		for offset := range offsets {
			delete(p.held, offset)
			p.done[offset] = true
		}
		p.next = p.low(nil)
		maps.DeleteFunc(p.done, func(offset int64, _ bool) bool { return offset < p.next })
	}
}

// transact runs a transaction. After an error its client is closed, and another one must fence it. large has the indices of those whose records are
// too large.
func (k *Kafka) transact(ctx context.Context, all []*finish, ending map[int32]map[int64]bool) (large map[int]bool, err error) {
	defer func() {
		if err != nil {
			k.producer.Close()
			k.producer = nil
		}
	}()
	if err := k.producer.BeginTransaction(); err != nil {
		return nil, err
	}
	var records []*kgo.Record
	index := map[*kgo.Record]int{}
	for i, f := range all {
		for _, r := range f.records {
			records = append(records, r)
			index[r] = i
		}
	}
	large = map[int]bool{}
	for _, r := range k.producer.ProduceSync(ctx, records...) {
		if errors.Is(r.Err, kerr.MessageTooLarge) {
			large[index[r.Record]] = true
		} else {
			err = cmp.Or(err, r.Err)
		}
	}
	if err == nil && len(large) > 0 {
		err = errAgain
	}
	if err == nil {
		err = k.commitIn(ctx, ending)
	}
	if err != nil {
		return large, err
	}
	return nil, k.producer.EndTransaction(ctx, kgo.TryCommit)
}

// commitIn adds offsets to the transaction.
func (k *Kafka) commitIn(ctx context.Context, ending map[int32]map[int64]bool) error {
	id, epoch, err := k.producer.ProducerID(ctx)
	if err != nil {
		return err
	}
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = k.txn, id, epoch, k.group()
	added, err := add.RequestWith(ctx, k.producer)
	if err == nil {
		err = kerr.ErrorForCode(added.ErrorCode)
	}
	if err != nil {
		return err
	}
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = k.txn, id, epoch, k.group()
	t := kmsg.NewTxnOffsetCommitRequestTopic()
	t.Topic = k.cfg.Queue
	k.mu.Lock()
	req.MemberID, req.Generation = k.consumer.GroupMetadata()
	for i, offsets := range ending {
		if p := k.partitions[i]; p != nil {
			low := p.low(offsets)
			text := p.state(low, offsets)
			one := kmsg.NewTxnOffsetCommitRequestTopicPartition()
			one.Partition, one.Offset, one.Metadata = i, low, &text
			t.Partitions = append(t.Partitions, one)
		}
	}
	k.mu.Unlock()
	if len(t.Partitions) < len(ending) {
		return errAgain // a partition was lost meanwhile
	}
	req.Topics = append(req.Topics, t)
	answer, err := req.RequestWith(ctx, k.producer)
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
