package webhook

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSign has the example of the specification of Standard Webhooks.
func TestSign(t *testing.T) {
	secret, err := ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	if got := sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`)); got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Errorf("the signature is %s", got)
	}
	for _, text := range []string{"", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 23)), "whsec_!"} {
		if _, err := ParseSecret(text); err == nil {
			t.Errorf("%q is taken for a secret", text)
		}
	}
}

// received is a request that the operator's server got.
type received struct {
	header http.Header
	body   []byte
}

// An event is sent until it is answered with 2xx, also by another process, with the same id; redirects are not followed.
func TestSend(t *testing.T) {
	s, err := store.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "batch.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := batch.Batch{ID: "batch_1", Tenant: "t", InputFile: "file-1", Endpoint: "/v1/embeddings"}
	b.Times.Created, b.Times.Expires = 1, time.Now().Add(time.Hour).UnixMilli()
	if err := s.AddFile(t.Context(), batch.File{ID: "file-1", Tenant: "t", Purpose: batch.PurposeInput}, batch.Amounts{}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddBatch(t.Context(), b, batch.Amounts{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Cancel(t.Context(), "t", b.ID, time.Now().UnixMilli()); err != nil {
		t.Fatal(err)
	}
	got := make(chan received, 10)
	statuses := make(chan int, 3)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Location", elsewhere.URL)
		w.WriteHeader(<-statuses)
		got <- received{r.Header.Clone(), body}
	}))
	defer server.Close()
	at, err := url.Parse(server.URL + "/hook")
	if err != nil {
		t.Fatal(err)
	}
	secret := []byte("0123456789abcdef01234567")
	var first received
	for i, status := range []int{http.StatusTemporaryRedirect, http.StatusInternalServerError, http.StatusNoContent} {
		statuses <- status
		sender := New(Config{URL: at, Secret: secret}, s, slog.New(slog.NewTextHandler(t.Output(), nil)), prometheus.NewRegistry())
		// Each try is that of another process; the time between tries is skipped.
		now := time.Now().Add(time.Duration(i) * 24 * time.Hour)
		due, err := s.Notices(t.Context(), now.UnixMilli(), 0, 10)
		if err != nil || len(due) != 1 || due[0].Tries != int64(i) {
			t.Fatalf("try %d: %+v are due, %v", i, due, err)
		}
		sender.send(t.Context(), due[0])
		r := <-got
		sender.http.CloseIdleConnections()
		if i == 0 {
			first = r
		}
		id, timestamp := r.header.Get("Webhook-Id"), r.header.Get("Webhook-Timestamp")
		if id != first.header.Get("Webhook-Id") || r.header.Get("Webhook-Signature") != sign(secret, id, timestamp, r.body) {
			t.Errorf("try %d has the header %v", i, r.header)
		}
		var e event
		if err := json.Unmarshal(r.body, &e); err != nil || e.Type != "batch.cancelled" || e.Data.ID != b.ID || e.ID != id || e.Object != "event" {
			t.Errorf("the event is %s, %v", r.body, err)
		}
	}
	if due, err := s.Notices(t.Context(), time.Now().Add(100*24*time.Hour).UnixMilli(), 0, 10); err != nil || len(due) != 0 {
		t.Errorf("%+v are due after the delivery, %v", due, err)
	}
}

// Run finds what is due by itself.
func TestRun(t *testing.T) {
	s, err := store.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "batch.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Webhook-Id") }))
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddFile(t.Context(), batch.File{ID: "file-1", Tenant: "t", Purpose: batch.PurposeInput}, batch.Amounts{}); err != nil {
		t.Fatal(err)
	}
	sender := New(Config{URL: at, Secret: make([]byte, 24)}, s, slog.New(slog.NewTextHandler(t.Output(), nil)), prometheus.NewRegistry())
	sender.poll = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		sender.Run(ctx)
	}()
	for _, id := range []string{"batch_1", "batch_2"} {
		b := batch.Batch{ID: id, Tenant: "t", InputFile: "file-1", Endpoint: "/v1/embeddings"}
		b.Times.Created, b.Times.Expires = 1, time.Now().Add(time.Hour).UnixMilli()
		if err := s.AddBatch(t.Context(), b, batch.Amounts{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Cancel(t.Context(), "t", id, time.Now().UnixMilli()); err != nil {
			t.Fatal(err)
		}
		if event := <-got; event != "evt_"+id[len("batch_"):] {
			t.Errorf("the event is %s", event)
		}
	}
	cancel()
	<-ended
}

func TestPause(t *testing.T) {
	s := &Sender{first: firstPause}
	for tries, want := range []time.Duration{5 * time.Second, 20 * time.Second, 80 * time.Second} {
		if got := s.pause(int64(tries)) - timeout; got < want || got > want*5/4 {
			t.Errorf("after %d tries: %v", tries, got)
		}
	}
	if got := s.pause(1000) - timeout; got < longestPause || got > longestPause*5/4 {
		t.Errorf("after many tries: %v", got)
	}
}
