package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/upstream"
)

const (
	// poll is how often a queue is looked at that had no message, or whose gates are closed.
	poll = 500 * time.Millisecond
	// atOnce bounds the messages that are claimed and wait for a slot, which other consumers could send.
	atOnce = 16
	// storeAgain is how long a consumer waits before it tries again to reach its broker.
	storeAgain = 2 * time.Second
)

// The causes of the end of a message's context.
var (
	errCancelled = errors.New("cancelled by its producer")
	errDeadline  = errors.New("its deadline has passed")
)

// Telemetry is where a Consumer reports. No field may be nil.
type Telemetry struct {
	Log        *slog.Logger
	Metrics    *Metrics
	Propagator propagation.TextMapPropagator
}

// Consumer answers the messages of one queue. Make it with New, and Run it once.
type Consumer struct {
	cfg    Config
	source Source
	to     *upstream.Client
	drain  time.Duration
	t      Telemetry
	log    *slog.Logger
	budget *bucket
	full   *saturationGate
	poll   time.Duration // a field so that tests can shorten it, like the next one
	renew  time.Duration
	said   string        // the last error of the broker or of a gate, which is logged once
	freed  chan struct{} // a message has ended; holds one

	mu   sync.Mutex
	held map[string]*holding
}

// holding is a message that is held.
type holding struct {
	Message
	call context.Context // until the deadline, the cancellation, the loss, or the end of the drain
	end  context.CancelCauseFunc
}

// New makes a Consumer of a queue that Config.Open has opened. drain is how long requests in flight may take when it stops.
func New(cfg Config, source Source, to *upstream.Client, drain time.Duration, t Telemetry) *Consumer {
	t.Metrics.waiting.queue[cfg.Queue] = source
	return &Consumer{cfg: cfg, source: source, to: to, drain: drain, t: t, log: t.Log.With("queue", cfg.Queue), budget: newBucket(cfg.Budget, time.Now()), full: newSaturationGate(cfg.Saturation),
		poll: poll, renew: leaseTime / 3, freed: make(chan struct{}, 1), held: map[string]*holding{}}
}

// Run answers messages until ctx ends. Then it claims none, gives requests in flight the drain time, and releases what has no answer.
func (c *Consumer) Run(ctx context.Context) {
	defer c.full.close()
	cut, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(c.drain, end) })
	defer stop()
	var renewing, running sync.WaitGroup
	renewing.Go(func() { c.renewAll(cut) })
	for ctx.Err() == nil {
		messages, open, err := c.claim(ctx)
		c.report(ctx, err)
		for _, m := range messages {
			if h := c.hold(cut, m); h != nil {
				c.start(ctx, cut, h, open, &running)
			}
		}
		if len(messages) == 0 {
			c.idle(ctx)
		}
	}
	running.Wait()
	end()
	renewing.Wait()
}

// idle waits until it is time to look for messages.
func (c *Consumer) idle(ctx context.Context) {
	timer := time.NewTimer(c.poll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-c.freed:
	}
}

// report logs an error of the broker or of a gate, unless it said the same the last time.
func (c *Consumer) report(ctx context.Context, err error) {
	text := ""
	if err != nil && ctx.Err() == nil {
		text = err.Error()
	}
	if text != "" && text != c.said {
		c.log.Warn("no messages are claimed", "error", err)
	}
	c.said = text
}

// claim claims messages, as many as the gates allow, and reports whether they are open. While they are closed it claims those whose deadline
// has passed, which get their results.
func (c *Consumer) claim(ctx context.Context) (messages []Message, open bool, err error) {
	c.mu.Lock()
	most := min(atOnce, c.cfg.MaxInFlight-len(c.held))
	c.mu.Unlock()
	if most <= 0 {
		return nil, false, nil
	}
	now := time.Now()
	open = c.gate("hours", c.cfg.Hours.open(now))
	var gateErr error
	if open && c.full != nil {
		var spare bool
		spare, gateErr = c.full.open(ctx)
		open = c.gate("saturation", spare)
	}
	granted := most
	if open && c.budget != nil {
		granted = c.budget.take(most, now)
		open = c.gate("budget", granted > 0)
	}
	if !open {
		messages, err = c.source.Claim(ctx, most, now)
		return messages, false, errors.Join(gateErr, err)
	}
	messages, err = c.source.Claim(ctx, granted, time.Time{})
	c.budget.put(granted - len(messages))
	return messages, true, err
}

// gate notes whether a gate is open.
func (c *Consumer) gate(name string, open bool) bool {
	value := 1.0
	if open {
		value = 0
	}
	c.t.Metrics.closed.WithLabelValues(c.cfg.Queue, name).Set(value)
	return open
}

// start waits until the request of a message may be sent, and has it answered. open is what claim reported: the score of a message whose deadline
// has not passed may be wrong.
func (c *Consumer) start(ctx, cut context.Context, h *holding, open bool, running *sync.WaitGroup) {
	if r, reason, label := c.refuse(h.Message); label != "" {
		running.Go(func() { c.finish(cut, h, r, reason, label) })
		return
	}
	start, end := context.WithCancel(h.call)
	stop := context.AfterFunc(ctx, end)
	acquired := open && c.to.Acquire(start) == nil
	if acquired && !c.cfg.Hours.open(time.Now()) {
		c.to.Return()
		acquired = false
	}
	running.Go(func() {
		defer end()
		defer stop()
		var a upstream.Answer
		if acquired {
			if a, acquired = c.to.Do(start, h.call, c.request(h)); acquired {
				c.answered(cut, h, a)
				return
			}
		}
		c.unanswered(cut, h)
	})
}

// hold notes that a message is held. It returns nil if it is already: its claim has lapsed while the broker was slow, and is this consumer's again.
func (c *Consumer) hold(cut context.Context, m Message) *holding {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[m.Key] != nil {
		return nil
	}
	cancellable, cancel := context.WithCancelCause(c.t.Propagator.Extract(cut, propagation.MapCarrier(m.Metadata)))
	h := &holding{Message: m, call: cancellable, end: cancel}
	if !m.Deadline.IsZero() {
		limited, end := context.WithDeadlineCause(cancellable, m.Deadline, errDeadline)
		h.call, h.end = limited, func(cause error) { cancel(cause); end() }
	}
	c.held[m.Key] = h
	c.t.Metrics.held.WithLabelValues(c.cfg.Queue).Set(float64(len(c.held)))
	return h
}

// drop forgets a message.
func (c *Consumer) drop(h *holding) {
	h.end(nil)
	c.mu.Lock()
	delete(c.held, h.Key)
	c.t.Metrics.held.WithLabelValues(c.cfg.Queue).Set(float64(len(c.held)))
	c.mu.Unlock()
	select {
	case c.freed <- struct{}{}:
	default:
	}
}

// refuse returns the result of a message that is not sent; label is empty if it is to be sent.
func (c *Consumer) refuse(m Message) (r result, reason, label string) {
	switch {
	case m.Problem != nil:
		return errorResult(m.ID, codeInvalid, m.Problem.Error()), m.Problem.Error(), "invalid"
	case m.Cancelled:
		return errorResult(m.ID, codeCancelled, errCancelled.Error()), "", "cancelled"
	case !time.Now().Before(m.Deadline):
		return errorResult(m.ID, codeDeadline, errDeadline.Error()), "", "expired"
	case m.Deliveries > c.cfg.mostDeliveries:
		text := fmt.Sprintf("%d consumers were killed, or lost their connection, while they had this message", m.Deliveries-1)
		return errorResult(m.ID, codeInference, text), text, "abandoned"
	}
	return r, "", ""
}

// request is what is sent to the upstream for a message.
func (c *Consumer) request(h *holding) upstream.Request {
	header := http.Header{}
	for name, value := range h.Headers {
		for _, allowed := range c.cfg.Headers {
			if http.CanonicalHeaderKey(name) == allowed {
				header.Set(allowed, value)
			}
		}
	}
	tenant := c.cfg.Queue
	if header.Get(fairnessHeader) != "" {
		tenant = "" // the message names it
	}
	return upstream.Request{ID: "queue_req_" + h.Key, Endpoint: cmp.Or(h.Endpoint, c.cfg.Endpoint), Tenant: tenant, Objective: c.cfg.Objective, Header: header, Body: h.Payload}
}

// fairnessHeader is by what the picker shares capacity.
const fairnessHeader = "X-Llm-D-Inference-Fairness-Id"

// answered stores an answer. One that says that the upstream failed, after all tries, is a dead letter too.
func (c *Consumer) answered(cut context.Context, h *holding, a upstream.Answer) {
	switch {
	case a.Status == 0:
		text := "no answer: " + a.Code
		c.finish(cut, h, errorResult(h.ID, codeInference, text), text, "failed")
	case a.Status >= http.StatusInternalServerError:
		c.finish(cut, h, result{ID: h.ID, Status: a.Status, Payload: string(a.Body)}, fmt.Sprintf("the upstream answered %d", a.Status), "failed")
	default:
		c.finish(cut, h, result{ID: h.ID, Status: a.Status, Payload: string(a.Body)}, "", "answered")
	}
}

// unanswered ends a message whose request has no answer: it was cancelled, is too late, or is another consumer's. Else this one stops,
// or the hours are over, and the message is released.
func (c *Consumer) unanswered(cut context.Context, h *holding) {
	switch cause := context.Cause(h.call); {
	case errors.Is(cause, ErrLost):
		c.count("lost")
		c.drop(h)
	case errors.Is(cause, errCancelled):
		c.finish(cut, h, errorResult(h.ID, codeCancelled, errCancelled.Error()), "", "cancelled")
	case errors.Is(cause, errDeadline):
		c.finish(cut, h, errorResult(h.ID, codeDeadline, errDeadline.Error()), "", "expired")
	default:
		if err := c.source.Release(context.WithoutCancel(cut), h.Message); err != nil && !errors.Is(err, ErrLost) {
			c.log.Warn("a message waits for the end of its claim", "error", err)
		}
		c.drop(h)
	}
}

// finish stores a result. While the broker is away it waits, and has no further requests sent.
func (c *Consumer) finish(cut context.Context, h *holding, r result, reason, label string) {
	defer c.drop(h)
	for {
		err := c.source.Finish(context.WithoutCancel(cut), h.Message, r.encode(), reason)
		switch {
		case err == nil:
			c.count(label)
			return
		case errors.Is(err, ErrLost):
			c.count("lost")
			return
		}
		c.log.Warn("a result is kept in memory, and no requests are sent, until it can be stored", "error", err)
		c.to.Pause(storeAgain)
		if !batch.Sleep(cut, storeAgain) {
			return
		}
	}
}

func (c *Consumer) count(label string) {
	c.t.Metrics.messages.WithLabelValues(c.cfg.Queue, label).Inc()
}

// renewAll renews the claims of all messages that are held now and then, until ctx ends, and ends requests whose messages are lost or cancelled.
func (c *Consumer) renewAll(ctx context.Context) {
	ticker := time.NewTicker(c.renew)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		c.mu.Lock()
		var messages []Message
		for _, h := range c.held {
			messages = append(messages, h.Message)
		}
		c.mu.Unlock()
		if len(messages) == 0 {
			continue
		}
		lost, cancelled, err := c.source.Renew(ctx, messages)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("claims may lapse", "error", err)
		}
		c.endAll(lost, ErrLost)
		c.endAll(cancelled, errCancelled)
	}
}

func (c *Consumer) endAll(keys []string, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		if h := c.held[key]; h != nil {
			h.end(cause)
		}
	}
}
