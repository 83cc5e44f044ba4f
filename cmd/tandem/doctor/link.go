package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/netdev"
	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
	"github.com/tandem-serving/tandem/pd"
)

// linkFlags are those of tandem doctor link.
type linkFlags struct {
	Tokens []int `flag:"tokens" help:"lengths of the prompts that are sent, in tokens; those beyond the model's length are cut to it"`
	Rounds int   `flag:"rounds" help:"prompts of each length that are prefilled remotely, and as many locally, for each pair"`
	Pairs  int   `flag:"pairs" help:"most pairs of a prefill and a decode pod; all pods are in one, as far as that goes"`
}

func (l *linkFlags) validate(p *boot.Problems) {
	p.Require(len(l.Tokens) > 0, "tokens", "name at least one length")
	for _, n := range l.Tokens {
		p.Require(n > 0 && n <= 1<<20, "tokens", "want 1 to 1048576, got %d", n)
	}
	p.Require(l.Rounds >= 1 && l.Rounds <= 100, "rounds", "want 1 to 100")
	p.Require(l.Pairs >= 1 && l.Pairs <= 1000, "pairs", "want 1 to 1000")
}

// crossing is a prompt whose KV cache has moved from one engine to another.
type crossing struct {
	tokens    int
	transfers float64       // that its engine has counted meanwhile: 1 without other traffic
	seconds   float64       // of these
	bytes     float64       // of these
	took      time.Duration // until the client had its answer, of one token
}

// link is what was measured between the endpoints of a pair. Its JSON form is stable.
type link struct {
	Prefill string `json:"prefill"`
	Decode  string `json:"decode"`
	// FirstMs is how long the first request took, in which engines meet, in milliseconds.
	FirstMs float64 `json:"firstMs,omitempty"`
	// LatencyMs and BytesPerSecond are those of a transfer: time = latency + bytes / speed. 0: not known.
	LatencyMs      float64   `json:"latencyMs,omitempty"`
	BytesPerSecond float64   `json:"bytesPerSecond,omitempty"`
	BytesPerToken  float64   `json:"bytesPerToken,omitempty"`
	Carrier        string    `json:"carrier"` // rdma, ip, loopback, other (memory of the machine, NVLink), or unknown
	Device         string    `json:"device,omitempty"`
	Lengths        []length  `json:"lengths"`
	Verdict        verdict   `json:"verdict"`
	Seen           string    `json:"seen"`
	Do             string    `json:"advice,omitempty"`
	moved          []float64 // bytes that devices received, by that of device
	devices        []device
}

// length is the medians of the prompts of one length.
type length struct {
	Tokens     int     `json:"tokens"`
	TransferMs float64 `json:"transferMs,omitempty"` // by the engine's counters
	RemoteMs   float64 `json:"remoteMs,omitempty"`   // of an answer of one token, prefilled remotely
	LocalMs    float64 `json:"localMs,omitempty"`    // and by the decode engine
	bytes      float64 // of a transfer
}

// device is one that a sidecar's metrics name.
type device struct{ name, kind string }

// links measures pairs, one after the other: two at a time would share what they cross.
func (f *fleet) links(ctx context.Context, how *linkFlags, say func(string)) []link {
	pairs := f.pairs()
	all := make([]link, 0, min(len(pairs), how.Pairs))
	for _, p := range pairs[:min(len(pairs), how.Pairs)] {
		say(p.String())
		all = append(all, f.measure(ctx, how, p))
	}
	return all
}

// measure sends prompts of random tokens, which no engine has cached, in turn by both ways.
func (f *fleet) measure(ctx context.Context, how *linkFlags, p pair) link {
	l := link{Prefill: p.prefill.name, Decode: p.decode.name, Carrier: carrierUnknown}
	if p.decode.modelsErr != nil {
		return l.fails(fmt.Sprintf("its model is unknown: %v", p.decode.modelsErr), "")
	}
	var crossings []crossing
	local := map[int][]time.Duration{}
	for round := range how.Rounds {
		for _, tokens := range how.Tokens {
			if most := p.decode.base().MaxModelLen; most > 1 {
				tokens = min(tokens, most-1)
			}
			before, sidecar := f.counters(ctx, p.decode), f.devices(ctx, p.decode)
			took, decision, err := f.send(ctx, p, tokens, pd.ModeForce)
			if err != nil {
				return l.fails(err.Error(), "the sidecar's log has the details; tandem doctor looks for what does not fit together")
			}
			if !strings.HasPrefix(decision, "remote;") {
				return l.fails("it was not prefilled remotely: "+cmp.Or(decision, "the answer has no header of a sidecar"), "")
			}
			c := crossing{tokens: tokens, took: took}
			c.count(before, f.counted(ctx, p.decode, before))
			l.received(sidecar, f.devices(ctx, p.decode))
			if round == 0 && l.FirstMs == 0 {
				l.FirstMs = ms(took)
				c.took = 0
			}
			crossings = append(crossings, c)
			if took, _, err = f.send(ctx, p, tokens, pd.ModeBypass); err == nil {
				local[tokens] = append(local[tokens], took)
			}
		}
	}
	l.sum(crossings, local)
	l.judge()
	return l
}

// fails returns the link as one that nothing crosses.
func (l *link) fails(seen, do string) link {
	l.Verdict, l.Seen, l.Do = fail, seen, do
	return *l
}

// send sends a prompt of random tokens for an answer of one, and returns how long that took and what the sidecar decided.
func (f *fleet) send(ctx context.Context, p pair, tokens int, mode pd.Mode) (took time.Duration, decision string, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(f.how.Timeout, probeTime))
	defer cancel()
	prompt := make([]int, tokens)
	for i := range prompt {
		prompt[i] = firstOrdinary + rand.IntN(ordinary) //nolint:gosec // no secret
	}
	body, err := json.Marshal(map[string]any{"model": p.decode.base().ID, "prompt": prompt, "max_tokens": 1, "temperature": 0})
	if err != nil {
		return 0, "", err
	}
	header := http.Header{"Content-Type": {"application/json"},
		http.CanonicalHeaderKey(pd.HeaderMode):      {mode.String()},
		http.CanonicalHeaderKey(pd.HeaderRequestID): {"tandem-doctor-" + randomID()}}
	if mode == pd.ModeForce {
		header.Set(pd.HeaderPrefill, p.prefill.addr.String())
	}
	began := time.Now()
	a, err := f.engines().ask(ctx, http.MethodPost, f.base(p.decode)+pd.APICompletions.Path(), header, string(body))
	if err != nil {
		return 0, "", err
	}
	if a.status != http.StatusOK {
		return 0, "", fmt.Errorf("a prompt of %d tokens: %w", tokens, statusError(a.status))
	}
	return time.Since(began), a.header.Get(pd.HeaderDecision), nil
}

// Ids from firstOrdinary on are ordinary tokens in every vocabulary, whose special tokens are among the first, or after hundreds of
// thousands.
const (
	firstOrdinary = 300
	ordinary      = 700
)

// counters are an engine's sums over the KV caches that it has read.
type counters struct{ transfers, seconds, bytes float64 }

// counters reads those of an engine, zero if it has none.
func (f *fleet) counters(ctx context.Context, t *target) (c counters) {
	page := f.page(ctx, t)
	c.transfers, _ = page.Sum(transferSeconds + "_count")
	c.seconds, _ = page.Sum(transferSeconds + "_sum")
	c.bytes, _ = page.Sum(transferBytes + "_sum")
	return c
}

// counted reads them until a transfer is counted: an engine counts it after the step that needed it.
func (f *fleet) counted(ctx context.Context, t *target, before counters) counters {
	if !t.page.Has(transferSeconds) {
		return before
	}
	const pause, tries = 100 * time.Millisecond, 20
	var after counters
	for range tries {
		if after = f.counters(ctx, t); after.transfers > before.transfers {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return after
		}
	}
	return after
}

func (f *fleet) page(ctx context.Context, t *target) promtext.Page {
	ctx, cancel := context.WithTimeout(ctx, f.how.Timeout)
	defer cancel()
	page, err := f.engines().metrics(ctx, f.base(t))
	if err != nil {
		return nil // its counters stay as they were
	}
	return page
}

func (c *crossing) count(before, after counters) {
	c.transfers = max(0, after.transfers-before.transfers)
	c.seconds, c.bytes = max(0, after.seconds-before.seconds), max(0, after.bytes-before.bytes)
}

// devices reads what the network devices of an endpoint's pod have received, by the metrics page of its sidecar; nil if it is not known.
func (f *fleet) devices(ctx context.Context, t *target) map[device]float64 {
	s := f.sidecarOf(t)
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.how.Timeout)
	defer cancel()
	page, err := s.ask.metrics(ctx, s.base)
	if err != nil {
		return nil
	}
	all := map[device]float64{}
	for _, series := range page {
		if series.Name == netdev.Metric {
			all[device{series.Labels["device"], series.Labels["kind"]}] += series.Value
		}
	}
	return all
}

// sidecarOf returns the sidecar of an endpoint: that of its pod, or else one on its machine, which has the same devices.
func (f *fleet) sidecarOf(t *target) *operated {
	for _, s := range f.sidecars {
		if s.name == t.name {
			return s
		}
	}
	for _, s := range f.sidecars {
		at, err := url.Parse(s.base)
		if err == nil && net.ParseIP(at.Hostname()).Equal(t.addr.Addr().AsSlice()) {
			return s
		}
	}
	return nil
}

// received adds up what devices have received during a crossing.
func (l *link) received(before, after map[device]float64) {
	for d, n := range after {
		at := slices.Index(l.devices, d)
		if at < 0 {
			at = len(l.devices)
			l.devices, l.moved = append(l.devices, d), append(l.moved, 0)
		}
		if was, known := before[d]; known {
			l.moved[at] += max(0, n-was)
		}
	}
}

// sum takes medians of the lengths, and the latency and the speed that fit them.
func (l *link) sum(crossings []crossing, local map[int][]time.Duration) {
	var lengths []int
	bytes := 0.0
	for _, c := range crossings {
		lengths = append(lengths, c.tokens)
		bytes += c.bytes
	}
	slices.Sort(lengths)
	for _, tokens := range slices.Compact(lengths) {
		one := length{Tokens: tokens, LocalMs: ms(median(local[tokens]))}
		var remote []time.Duration
		var each, sizes []float64
		for _, c := range crossings {
			if c.tokens != tokens {
				continue
			}
			if c.took > 0 {
				remote = append(remote, c.took)
			}
			if c.transfers > 0 {
				each, sizes = append(each, c.seconds/c.transfers*1000), append(sizes, c.bytes/c.transfers)
			}
		}
		one.RemoteMs, one.TransferMs, one.bytes = ms(median(remote)), median(each), median(sizes)
		l.Lengths = append(l.Lengths, one)
	}
	l.fit()
	l.Carrier, l.Device = l.carrier(bytes)
}

// fit draws a line through the shortest and the longest prompt.
func (l *link) fit() {
	first, last := l.Lengths[0], l.Lengths[len(l.Lengths)-1]
	if last.TransferMs <= 0 || last.bytes <= 0 {
		return
	}
	l.BytesPerToken = last.bytes / float64(last.Tokens)
	l.BytesPerSecond = last.bytes / last.TransferMs * 1000
	if more, longer := last.bytes-first.bytes, last.TransferMs-first.TransferMs; first.TransferMs > 0 && more > 0 && longer > 0 {
		l.BytesPerSecond = more / longer * 1000
		l.LatencyMs = max(0, first.TransferMs-first.bytes/l.BytesPerSecond*1000)
	}
}

// Carriers that are no kind of a device.
const (
	carrierOther   = "other"
	carrierUnknown = "unknown"
)

const (
	// fewestMoved is the fewest bytes that tell what carries them: pages and requests are on the network too.
	fewestMoved = 1 << 20
	// mostOf is the share of the KV caches' bytes that the device must have received that carried them.
	mostOf = 0.5
)

// carrier returns what carried so many bytes of KV caches: the device that has received most of them.
func (l *link) carrier(bytes float64) (kind, name string) {
	if bytes < fewestMoved || len(l.devices) == 0 {
		return carrierUnknown, ""
	}
	most := -1
	for i, n := range l.moved {
		if n >= mostOf*bytes && (most < 0 || l.before(i, most)) {
			most = i
		}
	}
	if most < 0 {
		return carrierOther, ""
	}
	return l.devices[most].kind, l.devices[most].name
}

// before reports whether one of two devices that have received enough is rather the carrier: a port of an RDMA device, whose bytes an interface of
// the same name may count too, or else the one with more.
func (l *link) before(a, b int) bool {
	if rdma := l.devices[a].kind == netdev.RDMA; rdma != (l.devices[b].kind == netdev.RDMA) {
		return rdma
	}
	return l.moved[a] > l.moved[b]
}

// judge says what the figures mean.
func (l *link) judge() {
	last := l.Lengths[len(l.Lengths)-1]
	how := map[string]string{netdev.RDMA: "RDMA over " + l.Device, netdev.IP: "TCP over " + l.Device, netdev.Loopback: "TCP on the loopback device",
		carrierOther: "no network device: memory of the machine, or NVLink", carrierUnknown: "not known what carries it"}[l.Carrier]
	switch speed := l.BytesPerSecond; {
	case last.TransferMs == 0:
		l.Verdict, l.Seen = unknown, "the decode engine does not count its transfers"
		l.Do = "compare the times of answers by both ways"
	case l.Carrier == netdev.IP || l.Carrier == netdev.Loopback:
		l.Verdict, l.Seen, l.Do = warn, fmt.Sprintf("%.2f GB/s, %s", speed/1e9, how), overTCP
	case last.bytes < largeTransfer:
		l.Verdict, l.Seen, l.Do = unknown, fmt.Sprintf("KV caches of %.1f MB are too small to tell the speed; %s", last.bytes/1e6, how), "use longer prompts (--tokens)"
	case speed < slowLink:
		l.Verdict, l.Seen, l.Do = warn, fmt.Sprintf("%.2f GB/s, as over TCP; %s", speed/1e9, how), overTCP
	default:
		l.Verdict, l.Seen = ok, fmt.Sprintf("%.2f GB/s; %s", speed/1e9, how)
	}
}

// ms returns a time in milliseconds.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// median returns the middle of some values, 0 of none.
func median[T cmp.Ordered](values []T) (middle T) {
	if len(values) == 0 {
		return middle
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}

// linkVerdict is the worst of the links.
func linkVerdict(all []link) verdict {
	worst := ok
	for i := range all {
		if slices.Index(severity, all[i].Verdict) > slices.Index(severity, worst) {
			worst = all[i].Verdict
		}
	}
	return worst
}

// writeLinks shows what was measured.
func writeLinks(w io.Writer, all []link, asJSON bool, paint func(verdict, string) string) error {
	if asJSON {
		return writeJSON(w, struct {
			Verdict verdict `json:"verdict"`
			Links   []link  `json:"links"`
		}{linkVerdict(all), all})
	}
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "prefill → decode\tfirst ms\ttokens\tKV MB\ttransfer ms\tremote ms\tlocal ms\t")
	for i := range all {
		name, first := all[i].Prefill+" → "+all[i].Decode, figure(all[i].FirstMs)
		for _, one := range all[i].Lengths {
			fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t\n", name, first, one.Tokens, figure(one.bytes/1e6), figure(one.TransferMs), figure(one.RemoteMs), figure(one.LocalMs))
			name, first = "", ""
		}
	}
	_ = table.Flush() // writes to b
	for i := range all {
		l := &all[i]
		fmt.Fprintf(&b, "%s  %s → %s: %s", paint(l.Verdict, fmt.Sprintf("%-7s", l.Verdict)), l.Prefill, l.Decode, l.Seen)
		if l.LatencyMs > 0 {
			fmt.Fprintf(&b, "; %s ms whatever the size", figure(l.LatencyMs))
		}
		if l.Do != "" {
			fmt.Fprintf(&b, " → %s", l.Do)
		}
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// figure prints a number with three digits, – for one that is not known.
func figure(v float64) string {
	switch {
	case v <= 0:
		return "–"
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
