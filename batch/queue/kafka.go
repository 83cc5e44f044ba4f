package queue

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/tandem-serving/tandem/batch"
)

const (
	// kafkaTimeout bounds one request, its repetitions included.
	kafkaTimeout = 10 * time.Second
	// kafkaTransaction is after which time the brokers end the transaction of a process that is killed. Until then no other one gets its partitions.
	kafkaTransaction = 15 * time.Second
	// kafkaWindow is how many messages of a partition are claimed behind one that is not finished. Which of them are finished is a part of
	// what is committed, for which brokers have 4096 bytes (offset.metadata.max.bytes).
	kafkaWindow   = 1000
	kafkaMetadata = 4000
	// kafkaLargest is the largest result. Topics take messages of 1,048,588 bytes unless they have another max.message.bytes.
	kafkaLargest = 1_000_000
	// kafkaTogether bounds the results of a transaction.
	kafkaTogether = 256
	// kafkaBackoff is how long a transaction waits that finds the last one still ending, which takes milliseconds.
	kafkaBackoff = 2 * time.Millisecond
	// Rebalances take seconds. Results that come meanwhile are stored after it, if the partition is still this process's.
	kafkaAgain = 100 * time.Millisecond
	kafkaTries = 100
)

// Kafka is a topic, whose partitions a consumer group divides among batch servers. Results are stored in transactions that also commit the
// offsets, so that a message has one result for consumers that read committed messages only. Messages end in any order: what is committed is the
// lowest offset that is not finished, and which ones behind it are finished or claimed.
type Kafka struct {
	cfg     Config
	options []kgo.Opt
	session time.Duration // after which a process that is killed loses its partitions; a field so that tests can shorten it

	finishes chan *finish
	ending   chan struct{}
	ended    sync.WaitGroup
	closing  sync.Once

	// Offsets are committed by one goroutine at a time, which holds commit. It is locked before mu.
	commit   sync.Mutex
	client   *kgo.Client
	producer *kgo.Client // of transactions; nil at first, and after one that failed
	txn      string      // transactional id

	mu         sync.Mutex
	consumer   *kgo.Client // nil until the topics have been found
	partitions map[int32]*partition
}

// partition is one that the group has given to this process.
type partition struct {
	unread bool  // what is committed must be read, since it is another process's, or a transaction failed
	next   int64 // the offset that is committed; -1: none
	last   int64 // the offset after those that were claimed
	done   map[int64]bool
	held   map[int64]*claim
	back   []*kgo.Record // released
	tried  map[int64]int // by offset, how often messages were claimed that are not finished, as it is committed
	paused bool
}

// claim is a message that this process holds.
type claim struct {
	record *kgo.Record
	times  int // how often it was claimed and not released, this time included
}

// finish is a message whose result is to be stored.
type finish struct {
	partition int32
	offset    int64
	records   []*kgo.Record // the result, and a dead letter if there is one
	done      chan error    // holds one
}

var (
	errAgain = errors.New("the consumer group is being rebalanced")
	errLarge = errors.New("a record is larger than its topic takes")
)

// OpenKafka opens the topic cfg.Queue of brokers such as kafka://user:password@host:9092, or kafkas:// with TLS. They need not answer yet.
func OpenKafka(cfg *Config) (*Kafka, error) {
	options, err := kafkaOptions(cfg)
	if err != nil {
		return nil, err
	}
	options = append(options, kgo.ClientID("tandem-batch"))
	k := &Kafka{cfg: *cfg, options: options, session: leaseTime, txn: batch.NewID("tandem-"), finishes: make(chan *finish), ending: make(chan struct{}), partitions: map[int32]*partition{}}
	if k.client, err = k.newClient(); err != nil {
		return nil, err
	}
	k.ended.Go(k.finishAll)
	return k, nil
}

// newClient makes a client that speaks as Kafka 2.8 does: later requests have ids instead of the names of topics, and a transaction's offsets are not
// added by a request of their own.
func (k *Kafka) newClient(more ...kgo.Opt) (*kgo.Client, error) {
	options := append(slices.Clip(k.options), kgo.MaxVersions(kversion.V2_8_0()), kgo.RetryTimeout(kafkaTimeout))
	client, err := kgo.NewClient(append(options, more...)...)
	if err != nil {
		return nil, fmt.Errorf("opening Kafka: %w", err)
	}
	return client, nil
}

// kafkaOptions reads the address. Errors do not have the password.
func kafkaOptions(cfg *Config) ([]kgo.Opt, error) {
	at, err := url.Parse(cfg.Broker)
	if err != nil || at.Host == "" || strings.Trim(at.Path, "/") != "" {
		return nil, errors.New("broker is not an address like kafka://user:password@host:9092")
	}
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(at.Host, ",")...)}
	if at.Scheme == "kafkas" {
		options = append(options, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	query := at.Query()
	mechanism := query.Get("sasl")
	query.Del("sasl")
	if len(query) > 0 {
		return nil, errors.New("broker has parameters other than sasl, which is plain, scram-sha-256 or scram-sha-512")
	}
	if at.User == nil {
		if mechanism != "" {
			return nil, errors.New("broker has sasl, but no user and password")
		}
		return options, nil
	}
	user := at.User.Username()
	password, _ := at.User.Password()
	switch mechanism {
	case "", "plain":
		return append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism())), nil
	case "scram-sha-256":
		return append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism())), nil
	case "scram-sha-512":
		return append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism())), nil
	}
	return nil, errors.New("the broker's sasl is unknown: want plain, scram-sha-256 or scram-sha-512")
}

// checkKafka reports what is wrong with the configuration of a queue in Kafka.
func checkKafka(cfg *Config) error {
	if cfg.Credentials != "" {
		return errors.New("credentials are not for Kafka: put user and password into broker")
	}
	_, err := kafkaOptions(cfg)
	return err
}

// Close implements Source. It leaves the group, so that the partitions go to other processes at once.
func (k *Kafka) Close() error {
	k.closing.Do(k.close)
	return nil
}

func (k *Kafka) close() {
	close(k.ending)
	k.ended.Wait()
	k.mu.Lock()
	consumer := k.consumer
	k.mu.Unlock()
	if consumer != nil {
		ctx, cancel := context.WithTimeout(context.Background(), kafkaTimeout)
		defer cancel()
		_ = consumer.LeaveGroupContext(ctx) // the group gives the partitions to others after its session time, if not now
		consumer.Close()
	}
	if k.producer != nil {
		k.producer.Close()
	}
	k.client.Close()
}

// ready returns the client of the group, which it makes as soon as the topics exist.
func (k *Kafka) ready(ctx context.Context) (*kgo.Client, error) {
	k.mu.Lock()
	consumer := k.consumer
	k.mu.Unlock()
	if consumer != nil {
		return consumer, nil
	}
	req := kmsg.NewPtrMetadataRequest()
	for _, topic := range append([]string{k.cfg.Queue, k.cfg.Results, k.cfg.DeadLetters}, k.cfg.OtherResults...) {
		if topic != "" {
			t := kmsg.NewMetadataRequestTopic()
			t.Topic = &topic
			req.Topics = append(req.Topics, t)
		}
	}
	answer, err := req.RequestWith(ctx, k.client)
	if err != nil {
		return nil, fmt.Errorf("Kafka does not answer: %w", err)
	}
	for _, t := range answer.Topics {
		err := kerr.ErrorForCode(t.ErrorCode)
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			return nil, fmt.Errorf("there is no topic %s: make it, as with kafka-topics.sh --create --topic %s", *t.Topic, *t.Topic)
		}
		if err != nil {
			return nil, fmt.Errorf("looking for the topic %s: %w", *t.Topic, err)
		}
	}
	consumer, err = kgo.NewClient(append(slices.Clip(k.options), kgo.ConsumerGroup(k.group()), kgo.ConsumeTopics(k.cfg.Queue), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.SessionTimeout(k.session), kgo.HeartbeatInterval(k.session/10), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(k.assigned), kgo.OnPartitionsRevoked(k.revoked), kgo.OnPartitionsLost(k.lost))...)
	if err != nil {
		return nil, fmt.Errorf("opening Kafka: %w", err)
	}
	k.mu.Lock()
	k.consumer = consumer
	k.mu.Unlock()
	return consumer, nil
}

func (k *Kafka) group() string { return cmp.Or(k.cfg.Consumer, "tandem") }

func (k *Kafka) assigned(_ context.Context, _ *kgo.Client, added map[string][]int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range added[k.cfg.Queue] {
		k.partitions[p] = &partition{unread: true, next: -1, held: map[int64]*claim{}}
	}
}

// revoked gives up partitions, whose next owner sees that their messages were released. It waits for a transaction to end.
func (k *Kafka) revoked(_ context.Context, consumer *kgo.Client, gone map[string][]int32) {
	k.commit.Lock()
	defer k.commit.Unlock()
	k.mu.Lock()
	var left []int32
	for _, i := range gone[k.cfg.Queue] {
		if p := k.partitions[i]; p != nil && !p.unread {
			for offset, c := range p.held {
				delete(p.held, offset)
				p.back = append(p.back, c.record)
			}
			left = append(left, i)
		}
	}
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), kafkaTimeout)
	defer cancel()
	_ = k.note(ctx, consumer, left) // else these messages seem to be claimed by a process that was killed
	k.lost(ctx, consumer, gone)
}

func (k *Kafka) lost(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, i := range gone[k.cfg.Queue] {
		delete(k.partitions, i)
	}
}

// noWait has PollRecords return what has come, instead of waiting.
var noWait context.Context

// Claim implements Source. Messages come in the order of partitions, so none is claimed for its deadline.
func (k *Kafka) Claim(ctx context.Context, most int, due time.Time) ([]Message, error) {
	if !due.IsZero() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	consumer, err := k.ready(ctx)
	if err != nil {
		return nil, err
	}
	k.commit.Lock()
	defer k.commit.Unlock()
	if err := k.read(ctx); err != nil {
		return nil, err
	}
	records := k.released(most)
	if len(records) < most {
		fetched := consumer.PollRecords(noWait, most-len(records))
		fetched.EachError(func(topic string, partition int32, e error) {
			err = fmt.Errorf("reading the topic %s: %w", cmp.Or(topic, k.cfg.Queue), e)
		})
		fetched.EachRecord(func(r *kgo.Record) { records = append(records, r) })
	}
	messages, changed := k.hold(records)
	k.pause(consumer)
	if len(messages) == 0 {
		if away := k.client.Ping(ctx); away != nil { // PollRecords does not say so
			return nil, fmt.Errorf("Kafka does not answer: %w", away)
		}
		return nil, err
	}
	if noted := k.note(ctx, consumer, changed); noted != nil {
		for _, m := range messages {
			_ = k.Release(ctx, m) // it may be another process's meanwhile
		}
		if errors.Is(noted, errAgain) {
			return nil, nil
		}
		return nil, fmt.Errorf("claiming messages of %s: %w", k.cfg.Queue, noted)
	}
	return messages, err
}

// released takes records that were released.
func (k *Kafka) released(most int) (records []*kgo.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.partitions {
		n := min(most-len(records), len(p.back))
		records = append(records, p.back[:n]...)
		p.back = p.back[n:]
	}
	return records
}

// hold notes that messages are held, and returns them with their partitions. It leaves out those that are held or finished, and lets those wait whose
// partition has come since what is committed was read.
func (k *Kafka) hold(records []*kgo.Record) (messages []Message, changed []int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range records {
		p := k.partitions[r.Partition]
		if p == nil {
			continue
		}
		if p.unread {
			p.back = append(p.back, r)
			continue
		}
		if p.next < 0 {
			p.next = r.Offset
		}
		p.last = max(p.last, r.Offset+1)
		if r.Offset < p.next || p.done[r.Offset] || p.held[r.Offset] != nil {
			continue
		}
		c := &claim{record: r, times: p.tried[r.Offset] + 1}
		p.held[r.Offset] = c
		m := Message{Key: fmt.Sprintf("%s.%d.%d", r.Topic, r.Partition, r.Offset), Deliveries: c.times, Request: parse(r.Value)}
		k.cfg.checkResults(&m.Request)
		messages = append(messages, m)
		if !slices.Contains(changed, r.Partition) {
			changed = append(changed, r.Partition)
		}
	}
	return messages, changed
}

// pause has no more messages fetched of partitions with many behind one that is not finished.
func (k *Kafka) pause(consumer *kgo.Client) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, p := range k.partitions {
		full := p.next >= 0 && p.last-p.low(nil) >= kafkaWindow
		one := map[string][]int32{k.cfg.Queue: {i}}
		switch {
		case full && !p.paused:
			consumer.PauseFetchPartitions(one)
		case !full && p.paused:
			consumer.ResumeFetchPartitions(one)
		}
		p.paused = full
	}
}

// low returns the lowest offset that is neither finished nor ending: what can be committed.
func (p *partition) low(ending map[int64]bool) int64 {
	low := p.last
	for offset := range p.held {
		if !ending[offset] {
			low = min(low, offset)
		}
	}
	for _, r := range p.back {
		low = min(low, r.Offset)
	}
	return low
}

// release makes a held message one that can be claimed again.
func (p *partition) release(offset int64) bool {
	c := p.held[offset]
	if c == nil {
		return false
	}
	delete(p.held, offset)
	p.back = append(p.back, c.record)
	if c.times > 1 {
		p.tried[offset] = c.times - 1
	} else {
		delete(p.tried, offset)
	}
	return true
}

// state writes what is committed with an offset: how many offsets behind it were claimed (n), which of these are finished (d) and which are held,
// and for which time (h). Offsets are relative.
func (p *partition) state(low int64, ending map[int64]bool) string {
	done := slices.Collect(maps.Keys(ending))
	for offset := range p.done {
		if offset > low {
			done = append(done, offset)
		}
	}
	done = slices.DeleteFunc(done, func(offset int64) bool { return offset < low })
	text := "n=" + strconv.FormatInt(p.last-low, 10) + ";d=" + runs(low, done)
	times := map[int][]int64{}
	for offset, c := range p.held {
		if !ending[offset] {
			times[c.times] = append(times[c.times], offset)
		}
	}
	held := text
	for _, n := range slices.Sorted(maps.Keys(times)) {
		held += ";h" + strconv.Itoa(n) + "=" + runs(low, times[n])
	}
	if len(held) > kafkaMetadata {
		return text // a message that kills its consumers is tried more often then
	}
	return held
}

// runs writes offsets as 3-5,8, relative to the first parameter.
func runs(low int64, offsets []int64) string {
	slices.Sort(offsets)
	var b strings.Builder
	for i := 0; i < len(offsets); {
		j := i
		for j+1 < len(offsets) && offsets[j+1] == offsets[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(offsets[i]-low, 10))
		if j > i {
			b.WriteString("-" + strconv.FormatInt(offsets[j]-low, 10))
		}
		i = j + 1
	}
	return b.String()
}

// restore reads what state wrote. Of another text it takes nothing: then messages may be answered again.
func (p *partition) restore(low int64, text string) {
	p.unread, p.next, p.last, p.done, p.tried = false, low, max(p.last, low), map[int64]bool{}, map[int64]int{}
	for field := range strings.SplitSeq(text, ";") {
		name, value, _ := strings.Cut(field, "=")
		times, isHeld := strings.CutPrefix(name, "h")
		n, err := strconv.Atoi(times)
		if name != "d" && (!isHeld || err != nil) {
			continue
		}
		for run := range strings.SplitSeq(value, ",") {
			from, to, isRun := strings.Cut(run, "-")
			if !isRun {
				to = from
			}
			first, err1 := strconv.ParseInt(from, 10, 64)
			last, err2 := strconv.ParseInt(to, 10, 64)
			if err1 != nil || err2 != nil || first < 0 || last-first > kafkaMetadata*kafkaWindow {
				continue
			}
			for offset := low + first; offset <= low+last; offset++ {
				if name == "d" {
					p.done[offset] = true
				} else {
					p.tried[offset] = n
				}
			}
		}
	}
	p.back = slices.DeleteFunc(p.back, func(r *kgo.Record) bool { return r.Offset < low || p.done[r.Offset] })
}

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

// Renew implements Source. The group's heartbeats keep the partitions.
func (k *Kafka) Renew(_ context.Context, held []Message) (lost, cancelled []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range held {
		i, offset := kafkaPlace(m)
		if p := k.partitions[i]; p == nil || p.held[offset] == nil {
			lost = append(lost, m.Key)
		}
	}
	return lost, nil, nil
}

// kafkaPlace reads the key of a message.
func kafkaPlace(m Message) (partition int32, offset int64) {
	rest, last, _ := cutLast(m.Key)
	_, first, _ := cutLast(rest)
	p, _ := strconv.ParseInt(first, 10, 32) // hold wrote both
	offset, _ = strconv.ParseInt(last, 10, 64)
	return int32(p), offset
}

func cutLast(text string) (before, after string, found bool) {
	i := strings.LastIndexByte(text, '.')
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+1:], true
}

// Release implements Source. The message can be claimed again at once.
func (k *Kafka) Release(_ context.Context, m Message) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	i, offset := kafkaPlace(m)
	if p := k.partitions[i]; p == nil || !p.release(offset) {
		return ErrLost
	}
	return nil
}

// Finish implements Source. Results that come at about the same time are stored together.
func (k *Kafka) Finish(ctx context.Context, m Message, result []byte, reason string) error {
	i, offset := kafkaPlace(m)
	message := k.text(i, offset)
	for range kafkaTries {
		if len(result) > kafkaLargest {
			result, reason = tooLarge(m, len(result), "a topic takes")
		}
		f := &finish{partition: i, offset: offset, done: make(chan error, 1)}
		f.records = append(f.records, &kgo.Record{Topic: cmp.Or(m.Results, k.cfg.Results), Key: []byte(m.ID), Value: result})
		if reason != "" && k.cfg.DeadLetters != "" {
			f.records = append(f.records, &kgo.Record{Topic: k.cfg.DeadLetters, Key: []byte(m.ID), Value: kafkaLetter(reason, message)})
		}
		select {
		case k.finishes <- f:
		case <-k.ending:
			return ErrLost
		case <-ctx.Done():
			return ctx.Err()
		}
		err := <-f.done
		switch {
		case errors.Is(err, errLarge):
			result, reason = tooLarge(m, len(result), "the topic's max.message.bytes allows")
			message = ""
		case errors.Is(err, errAgain):
			if !batch.Sleep(ctx, kafkaAgain) {
				return ctx.Err()
			}
		case err != nil && !errors.Is(err, ErrLost):
			return fmt.Errorf("storing a result of %s: %w", k.cfg.Queue, err)
		default:
			return err
		}
	}
	return fmt.Errorf("storing a result of %s: %w", k.cfg.Queue, errAgain)
}

// text returns the bytes of a message that is held.
func (k *Kafka) text(partition int32, offset int64) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.partitions[partition]; p != nil && p.held[offset] != nil {
		return string(p.held[offset].record.Value)
	}
	return ""
}

// kafkaLetter is a dead letter. A message that does not fit into one is left out of it.
func kafkaLetter(reason, message string) []byte {
	letter := DeadLetter{Reason: reason, Time: time.Now().Unix(), Message: message}
	text, _ := json.Marshal(letter) // texts and a number never fail
	if len(text) > kafkaLargest {
		letter.Message = ""
		text, _ = json.Marshal(letter)
	}
	return text
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
	var of []int
	for i, f := range all {
		for _, r := range f.records {
			records, of = append(records, r), append(of, i)
		}
	}
	index := map[*kgo.Record]int{}
	for i, r := range records {
		index[r] = of[i]
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
