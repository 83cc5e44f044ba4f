package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/batch/store"
)

const (
	// poll is how often the store is asked for batches that have ended.
	poll = 2 * time.Second
	// atOnce is how many events are sent at a time.
	atOnce  = 8
	timeout = 15 * time.Second
	// firstPause and longestPause bound the time between tries, which grows fourfold.
	firstPause   = 5 * time.Second
	longestPause = 6 * time.Hour
	// patience is how long after its end the event of a batch is sent.
	patience = 72 * time.Hour
)

// Config is where events go.
type Config struct {
	URL    *url.URL
	Secret []byte // of the signatures
}

// ParseSecret reads a secret of Standard Webhooks: whsec_ and base64 of 24 to 64 bytes.
func ParseSecret(text string) ([]byte, error) {
	encoded, found := strings.CutPrefix(text, "whsec_")
	secret, err := base64.StdEncoding.DecodeString(encoded)
	if !found || err != nil || len(secret) < 24 || len(secret) > 64 {
		return nil, errors.New("is not whsec_ and 24 to 64 bytes in base64")
	}
	return secret, nil
}

// Sender sends events. Make it with New, and Run it once.
type Sender struct {
	cfg   Config
	store *store.Store
	log   *slog.Logger
	sent  *prometheus.CounterVec
	http  *http.Client
	poll  time.Duration // a field so that tests can shorten it, like the next one
	first time.Duration
}

// New makes a Sender.
func New(cfg Config, s *store.Store, log *slog.Logger, reg prometheus.Registerer) *Sender {
	sent := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_batch_webhooks_total", Help: "Tries to send the event of a batch that has ended: delivered or failed."}, []string{"outcome"})
	reg.MustRegister(sent)
	return &Sender{cfg: cfg, store: s, log: log, sent: sent, poll: poll, first: firstPause, http: &http.Client{Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: atOnce, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Run sends events until ctx ends. One that is being sent then is sent again after the next start, unless it was delivered.
func (s *Sender) Run(ctx context.Context) {
	defer s.http.CloseIdleConnections()
	ticker := time.NewTicker(s.poll)
	defer ticker.Stop()
	for {
		if err := s.round(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("no webhooks are sent", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// round sends what is due.
func (s *Sender) round(ctx context.Context) error {
	for {
		now := time.Now()
		due, err := s.store.Notices(ctx, now.UnixMilli(), now.Add(-patience).UnixMilli(), atOnce)
		if err != nil {
			return err
		}
		var running sync.WaitGroup
		for _, n := range due {
			running.Go(func() { s.send(ctx, n) })
		}
		running.Wait()
		if len(due) < atOnce || ctx.Err() != nil {
			return nil
		}
	}
}

// send sends one event, and notes when it is to be sent again.
func (s *Sender) send(ctx context.Context, n store.Notice) {
	if err := s.store.TakeNotice(ctx, n, time.Now().Add(s.pause(n.Tries)).UnixMilli()); err != nil {
		if !errors.Is(err, store.ErrLost) && ctx.Err() == nil {
			s.log.Warn("a webhook is not sent", "batch", n.Batch, "error", err)
		}
		return
	}
	err := s.post(ctx, n)
	if err == nil {
		s.sent.WithLabelValues("delivered").Inc()
		err = s.store.EndNotice(context.WithoutCancel(ctx), n.Batch)
	} else {
		s.sent.WithLabelValues("failed").Inc()
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn("a webhook will be sent again", "batch", n.Batch, "tries", n.Tries+1, "error", err)
	}
}

// pause returns how long after the start of a try the next one is. It is longer than a try may take.
func (s *Sender) pause(tries int64) time.Duration {
	d := s.first
	for ; tries > 0 && d < longestPause; tries-- {
		d *= 4
	}
	d = min(d, longestPause)
	return timeout + d + rand.N(d/4)
}

// event is OpenAI's.
type event struct {
	ID      string    `json:"id"`
	Object  string    `json:"object"`
	Created int64     `json:"created_at"`
	Type    string    `json:"type"`
	Data    eventData `json:"data"`
}

type eventData struct {
	ID string `json:"id"` // of the batch
}

func (s *Sender) post(ctx context.Context, n store.Notice) error {
	id := "evt_" + strings.TrimPrefix(n.Batch, "batch_")
	body, err := json.Marshal(event{ID: id, Object: "event", Created: n.Ended / 1000, Type: "batch." + string(n.Status), Data: eventData{n.Batch}})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.URL.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "tandem-batch")
	request.Header.Set("Webhook-Id", id)
	request.Header.Set("Webhook-Timestamp", at)
	request.Header.Set("Webhook-Signature", sign(s.cfg.Secret, id, at, body))
	answer, err := s.http.Do(request)
	if err != nil {
		var broken *url.Error
		if errors.As(err, &broken) {
			err = broken.Err // without the address, which may hold a token
		}
		return fmt.Errorf("sending the webhook: %w", err)
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, 4096) // so that the connection can be used again
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("sending the webhook: %s", answer.Status)
	}
	return nil
}

// sign returns the signature of Standard Webhooks.
func sign(secret []byte, id, at string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
