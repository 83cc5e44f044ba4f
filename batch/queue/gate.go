package queue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // images of the batch server have no time zones
)

// bucket has a consumer claim no more messages than its budget. It fills evenly, and holds what comes in a tenth of the budget's time, so that a
// consumer that was idle does not spend all at once.
type bucket struct {
	perSecond, most float64

	mu   sync.Mutex
	has  float64
	last time.Time
}

// newBucket returns a full bucket; nil, which is never empty, if there is no budget.
func newBucket(b *Budget, now time.Time) *bucket {
	if b == nil {
		return nil
	}
	most := max(1, float64(b.Messages)/10)
	return &bucket{perSecond: float64(b.Messages) / b.Per.Seconds(), most: most, has: most, last: now}
}

// take takes up to n, and returns how many it took.
func (b *bucket) take(n int, now time.Time) int {
	if b == nil {
		return n
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.has = min(b.most, b.has+b.perSecond*max(0, now.Sub(b.last).Seconds()))
	b.last = now
	took := min(n, int(b.has))
	b.has -= float64(took)
	return took
}

// put returns what was not used.
func (b *bucket) put(n int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.has = min(b.most, b.has+float64(n))
}

// Hours are the hours of the day in which messages are answered.
type Hours struct {
	From string `yaml:"from"` // such as 22:00
	To   string `yaml:"to"`   // such as 06:00, which is the next day's then
	Zone string `yaml:"zone"` // such as Europe/Berlin; "": UTC

	from, to time.Duration // since midnight
	zone     *time.Location
}

func (h *Hours) load() (err error) {
	if h == nil {
		return nil
	}
	if h.zone, err = time.LoadLocation(h.Zone); err != nil {
		return fmt.Errorf("hours: zone: %w", err)
	}
	for _, f := range []struct {
		text string
		to   *time.Duration
	}{{h.From, &h.from}, {h.To, &h.to}} {
		at, err := time.Parse("15:04", f.text)
		if err != nil {
			return fmt.Errorf("hours: %q is not a time of day such as 22:00", f.text)
		}
		*f.to = time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute
	}
	if h.from == h.to {
		return errors.New("hours: from and to are the same: leave hours out for all day")
	}
	return nil
}

// open reports whether a time is within the hours.
func (h *Hours) open(now time.Time) bool {
	if h == nil {
		return true
	}
	now = now.In(h.zone)
	of := time.Duration(now.Hour())*time.Hour + time.Duration(now.Minute())*time.Minute + time.Duration(now.Second())*time.Second
	if h.from < h.to {
		return of >= h.from && of < h.to
	}
	return of >= h.from || of < h.to
}

// Saturation has messages wait while the engines of a pool are full, by the picker's metrics.
type Saturation struct {
	Metrics string  `yaml:"metrics"` // URL of the picker's metrics, such as http://tandem-epp:9090/metrics
	Below   float64 `yaml:"below"`   // saturation from which on messages wait; 1 is full
}

func (s *Saturation) check() error {
	if s == nil {
		return nil
	}
	at, err := url.Parse(s.Metrics)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return errors.New("saturation: metrics is not a URL such as http://tandem-epp:9090/metrics")
	}
	if s.Below <= 0 {
		return errors.New("saturation: below must be positive; 0.8 is a usual value")
	}
	return nil
}

const (
	// saturationMetric is the picker's gauge, one for each stage.
	saturationMetric = "tandem_pool_saturation"
	// saturationAge is how long a reading counts.
	saturationAge     = 2 * time.Second
	saturationTimeout = 5 * time.Second
	maxMetrics        = 64 << 20
)

// saturationGate reads the picker's metrics. It is closed while these cannot be read: an operator who asks for the gate wants engines spared.
type saturationGate struct {
	Saturation
	client *http.Client

	read time.Time
	full bool
	err  error // of the last reading
}

// newSaturationGate returns nil, which is always open, if there is no such gate.
func newSaturationGate(s *Saturation) *saturationGate {
	if s == nil {
		return nil
	}
	return &saturationGate{Saturation: *s, client: &http.Client{Timeout: saturationTimeout}}
}

// open reports whether the fullest stage is less full than the bound. It is called by one goroutine.
func (g *saturationGate) open(ctx context.Context) (bool, error) {
	if g == nil {
		return true, nil
	}
	if now := time.Now(); now.Sub(g.read) >= saturationAge {
		value, err := g.value(ctx)
		g.read, g.full, g.err = now, value >= g.Below, err
	}
	return g.err == nil && !g.full, g.err
}

func (g *saturationGate) value(ctx context.Context) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.Metrics, nil)
	if err != nil {
		return 0, err
	}
	answer, err := g.client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("reading the picker's saturation: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("reading the picker's saturation: %s", answer.Status)
	}
	most, found := 0.0, false
	lines := bufio.NewScanner(io.LimitReader(answer.Body, maxMetrics))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, text, ok := strings.Cut(lines.Text(), "} ")
		if !ok || !strings.HasPrefix(name, saturationMetric+"{") {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			return 0, fmt.Errorf("reading the picker's saturation: %w", err)
		}
		most, found = max(most, value), true
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("reading the picker's saturation: %w", err)
	}
	if !found {
		return 0, fmt.Errorf("%s has no %s: the picker needs flow control", g.Metrics, saturationMetric)
	}
	return most, nil
}

func (g *saturationGate) close() {
	if g != nil {
		g.client.CloseIdleConnections()
	}
}
