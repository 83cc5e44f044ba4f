package load

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/client"
	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/pd"
)

// settings are the flags.
type settings struct {
	Target  targetFlags  `group:"Endpoint"`
	Load    loadFlags    `group:"Load"`
	Prompts promptFlags  `group:"Prompts and answers"`
	Compare compareFlags `group:"Comparison"`
	Judge   judgeFlags   `group:"Objective"`
	Output  outputFlags  `group:"Output"`
}

type targetFlags struct {
	URL     string        `flag:"url" arg:"URL" help:"the endpoint: a gateway, a picker's Envoy, or an engine"`
	Model   string        `flag:"model" arg:"NAME" help:"model to ask for. Default: the one that the endpoint lists"`
	API     string        `flag:"api" enum:"chat,completions" help:"which API is called"`
	Stream  bool          `flag:"stream" help:"ask for streams; without them there is no TTFT and no ITL"`
	Mode    string        `flag:"mode" arg:"MODE" help:"x-tandem-pd of every request: auto, force, force;fallback or bypass. Default: the header is not sent"`
	Key     string        `flag:"api-key-file" arg:"FILE" help:"file with the API key, which is sent as a bearer token"`
	Headers []string      `flag:"header" arg:"NAME:VALUE[,…]" help:"headers of every request; may be repeated"`
	Extra   string        `flag:"extra-body" arg:"JSON" help:"object whose members are added to every body, such as {\"temperature\":0}"`
	CA      string        `flag:"ca-file" arg:"FILE" help:"certificate authorities of the endpoint. Default: the system's"`
	Cert    string        `flag:"cert-path" arg:"DIR" help:"directory with tls.crt and tls.key, the certificate to show"`
	NoCheck bool          `flag:"insecure-skip-verify" help:"do not verify the endpoint's certificate"`
	Connect time.Duration `flag:"connect-timeout" arg:"DURATION" help:"longest time to make a connection"`
	Timeout time.Duration `flag:"timeout" arg:"DURATION" help:"longest time of one request; what takes longer has failed"`
}

type loadFlags struct {
	Rate        float64       `flag:"rate" arg:"NUMBER" help:"requests in a second, each at its time whether or not earlier ones are answered (open loop)"`
	Arrivals    string        `flag:"arrivals" enum:"poisson,constant" help:"how the requests of --rate are spaced"`
	Concurrency int           `flag:"concurrency" arg:"NUMBER" help:"clients that send one request after the other (closed loop). Default, without --rate and --trace: 8"`
	Requests    int           `flag:"requests" arg:"NUMBER" help:"requests of a round, at most. Default: 200, and 100000 with --duration"`
	Duration    time.Duration `flag:"duration" arg:"DURATION" help:"time of a round in which requests are sent, at most. Default: 1m, and 1h with --requests"`
	InFlight    int           `flag:"max-in-flight" arg:"NUMBER" help:"requests in flight at the same time, at most; those of an open loop then wait, and their latency counts from when they were due"`
	Warmup      int           `flag:"warmup" arg:"NUMBER" help:"requests before each round that are not counted"`
	Seed        int           `flag:"seed" arg:"NUMBER" help:"the same seed gives the same lengths and arrivals. Words always differ: prefix caches remember earlier runs"`
}

type promptFlags struct {
	Input    workload.Lengths `flag:"input-tokens" arg:"TOKENS" help:"length of prompts: 512, or a range of equally likely lengths: 256-1024"`
	Output   workload.Lengths `flag:"output-tokens" arg:"TOKENS" help:"length of answers, likewise"`
	Share    float64          `flag:"shared-prefix" arg:"SHARE" help:"part of each prompt, 0 to 1, that is the same as in other prompts"`
	Groups   int              `flag:"prefix-groups" arg:"NUMBER" help:"how many different beginnings --shared-prefix makes"`
	Trace    string           `flag:"trace" arg:"FILE" help:"replay a trace: Mooncake, Azure, BurstGPT, vllm bench serve, BLIS TraceV2; load.md has the formats"`
	Speed    float64          `flag:"trace-speed" arg:"FACTOR" help:"2: the trace's arrivals come twice as fast"`
	Scale    float64          `flag:"trace-tokens" arg:"FACTOR" help:"0.5: the trace's prompts and answers are half as long"`
	MaxInput int              `flag:"trace-max-input" arg:"TOKENS" help:"leave out the trace's longer prompts; 0: none"`
	Start    time.Duration    `flag:"trace-start" arg:"DURATION" help:"leave out this first part of the trace"`
}

type compareFlags struct {
	Modes   []string `flag:"compare" arg:"MODE,MODE" help:"compare two values of x-tandem-pd in alternating rounds, such as auto,bypass: the first with the second"`
	Against string   `flag:"against" arg:"URL" help:"compare --url with this endpoint in alternating rounds, such as as many GPUs without P/D"`
	Rounds  int      `flag:"rounds" arg:"NUMBER" help:"rounds of each side; 6 are needed for a verdict. Default: 1, and 6 to compare"`
	Sweep   []int    `flag:"sweep-input" arg:"TOKENS[,…]" help:"compare at each of these lengths of prompts, to find the one from which remote prefill pays; without --compare it compares force with bypass"`
}

type judgeFlags struct {
	SLO  objective `flag:"slo" arg:"BOUND=TIME,…" help:"service level objective of a request: ttft=500ms,tpot=50ms,itl=80ms,e2e=10s. Goodput counts the requests that meet all of it. itl bounds 95 % of a request's gaps"`
	Gate float64   `flag:"gate" arg:"PERCENT" help:"exit with 1 unless so many percent of the requests of the first side meet --slo"`
	GPUs []int     `flag:"gpus" arg:"NUMBER[,…]" help:"GPUs behind the endpoint, to show throughput and goodput of each; with --against, those of both"`
}

type outputFlags struct {
	JSON    string `flag:"json" arg:"FILE" help:"write all figures to this file"`
	Records string `flag:"records" arg:"FILE.jsonl" help:"write every request to this file, as a line of JSON"`
	Report  string `flag:"report" arg:"FILE.html" help:"write the report as a page"`
}

func defaults() settings {
	return settings{
		Target:  targetFlags{URL: "http://127.0.0.1:8080", API: "chat", Stream: true, Connect: 10 * time.Second, Timeout: 5 * time.Minute},
		Load:    loadFlags{Arrivals: "poisson", InFlight: 1024, Warmup: 4, Seed: 1},
		Prompts: promptFlags{Input: workload.Lengths{Least: 512, Most: 512}, Output: workload.Lengths{Least: 64, Most: 64}, Groups: 1, Speed: 1, Scale: 1},
	}
}

// defaultConcurrency is the load if none is asked for.
const defaultConcurrency = 8

// Validate implements boot.Validator.
func (t *targetFlags) Validate(p *boot.Problems) {
	_, err := client.BaseURL(t.URL)
	p.Require(err == nil, "url", "%w", err)
	_, err = pd.ParseMode([]string{t.Mode})
	p.Require(t.Mode == "" || err == nil, "mode", "%q is not one of auto, force, force;fallback, bypass", t.Mode)
	_, err = t.header()
	p.Require(err == nil, "header", "%w", err)
	_, err = t.extra()
	p.Require(err == nil, "extra-body", "%w", err)
	if t.Key != "" {
		_, err := readKey(t.Key)
		p.Require(err == nil, "api-key-file", "%w", err)
	}
	p.Require(t.Connect > 0, "connect-timeout", "must be positive, got %v", t.Connect)
	p.Require(t.Timeout > 0, "timeout", "must be positive, got %v", t.Timeout)
}

// header returns the headers of every request, without the key.
func (t *targetFlags) header() (http.Header, error) {
	h := http.Header{}
	for _, line := range t.Headers {
		name, value, ok := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(name, " \t\r\n") {
			return nil, fmt.Errorf("%q is not NAME:VALUE (a value cannot have a comma)", line)
		}
		h.Add(name, strings.TrimSpace(value))
	}
	return h, nil
}

// extra returns the members of --extra-body.
func (t *targetFlags) extra() (members map[string]json.RawMessage, err error) {
	if t.Extra == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(t.Extra), &members); err != nil {
		return nil, fmt.Errorf("is not a JSON object: %w", err)
	}
	return members, nil
}

// Validate implements boot.Validator.
func (l *loadFlags) Validate(p *boot.Problems) {
	p.Require(l.Rate >= 0 && l.Rate <= 1e6, "rate", "must be from 0 to 1000000, got %v", l.Rate)
	p.Require(l.Concurrency >= 0 && l.Concurrency <= maxInFlight, "concurrency", "must be from 1 to %d, got %d", maxInFlight, l.Concurrency)
	p.Require(l.Rate == 0 || l.Concurrency == 0, "concurrency", "cannot be combined with --rate: an open loop does not wait for answers")
	p.Require(l.Requests >= 0 && l.Requests <= maxRequests, "requests", "must be from 1 to %d, got %d", maxRequests, l.Requests)
	p.Require(l.Duration == 0 || l.Duration >= time.Millisecond && l.Duration <= 24*time.Hour, "duration", "must be from 1ms to 24h, got %v", l.Duration)
	p.Require(l.InFlight >= 1 && l.InFlight <= maxInFlight, "max-in-flight", "must be from 1 to %d, got %d", maxInFlight, l.InFlight)
	p.Require(l.Warmup >= 0 && l.Warmup <= 1000, "warmup", "must be from 0 to 1000, got %d", l.Warmup)
}

// Bounds of the load: each request in flight is a goroutine and a connection, each measured one stays in memory.
const (
	maxInFlight = 65536
	maxRequests = 1_000_000
	maxRounds   = 1000
)

// bound returns the bounds of a round: both, whichever the user gave.
func (l *loadFlags) bound() workload.Bound {
	switch {
	case l.Requests == 0 && l.Duration == 0:
		return workload.Bound{Requests: 200, Span: time.Minute}
	case l.Requests == 0:
		return workload.Bound{Requests: 100_000, Span: l.Duration}
	case l.Duration == 0:
		return workload.Bound{Requests: l.Requests, Span: time.Hour}
	}
	return workload.Bound{Requests: l.Requests, Span: l.Duration}
}

// Validate implements boot.Validator.
func (f *promptFlags) Validate(p *boot.Problems) {
	p.Require(f.Share >= 0 && f.Share <= 1, "shared-prefix", "must be from 0 to 1, got %v", f.Share)
	p.Require(f.Groups >= 1, "prefix-groups", "must be positive, got %d", f.Groups)
	p.Require(f.Speed > 0 && f.Speed <= 1e6, "trace-speed", "must be positive, got %v", f.Speed)
	p.Require(f.Scale > 0 && f.Scale <= 1e3, "trace-tokens", "must be positive, got %v", f.Scale)
	p.Require(f.MaxInput >= 0, "trace-max-input", "must not be negative")
	p.Require(f.Start >= 0, "trace-start", "must not be negative")
	p.Require(f.Trace == "" || f.Share == 0, "shared-prefix", "cannot be combined with --trace, whose hash ids say what is shared")
}

// Validate implements boot.Validator.
func (c *compareFlags) Validate(p *boot.Problems) {
	p.Require(len(c.Modes) == 0 || len(c.Modes) == 2, "compare", "wants two modes such as auto,bypass, got %d", len(c.Modes))
	for _, mode := range c.Modes {
		_, err := pd.ParseMode([]string{mode})
		p.Require(err == nil, "compare", "%q is not one of auto, force, force;fallback, bypass", mode)
	}
	if c.Against != "" {
		_, err := client.BaseURL(c.Against)
		p.Require(err == nil, "against", "%w", err)
	}
	p.Require(len(c.Modes) != 2 || c.Modes[0] != c.Modes[1], "compare", "wants two different modes")
	p.Require(len(c.Modes) == 0 || c.Against == "", "against", "cannot be combined with --compare: a comparison has two sides")
	p.Require(c.Rounds >= 0 && c.Rounds <= maxRounds, "rounds", "must be from 1 to %d, got %d", maxRounds, c.Rounds)
	for i, tokens := range c.Sweep {
		p.Require(tokens >= 1, "sweep-input", "must be positive, got %d", tokens)
		p.Require(i == 0 || tokens > c.Sweep[i-1], "sweep-input", "must ascend, and %d follows %d", tokens, c.Sweep[max(0, i-1)])
	}
}

// Validate implements boot.Validator.
func (j *judgeFlags) Validate(p *boot.Problems) {
	p.Require(j.Gate >= 0 && j.Gate <= 100, "gate", "must be from 0 to 100, got %v", j.Gate)
	p.Require(j.Gate == 0 || len(j.SLO) > 0, "gate", "needs --slo")
	for _, n := range j.GPUs {
		p.Require(n >= 1, "gpus", "must be positive, got %d", n)
	}
}

// Validate implements boot.Validator.
func (o *outputFlags) Validate(p *boot.Problems) {
	for flag, file := range map[string]string{"json": o.JSON, "records": o.Records, "report": o.Report} {
		if file != "" { // fail now, not after the run
			_, err := os.Stat(filepath.Dir(file))
			p.Require(err == nil, flag, "cannot be written: %w", err)
		}
	}
}

// Validate implements boot.Validator: what flags of several groups say together.
func (s *settings) Validate(p *boot.Problems) {
	p.Require(s.Prompts.Trace == "" || s.Load.Rate == 0, "rate", "cannot be combined with --trace, which has its own arrivals: use --trace-speed")
	p.Require(s.Prompts.Trace == "" || len(s.Compare.Sweep) == 0, "sweep-input", "cannot be combined with --trace")
	p.Require(s.Target.Mode == "" || len(s.Compare.Modes) == 0, "mode", "cannot be combined with --compare")
	p.Require(s.Target.Stream || !s.Judge.SLO.needsStream(), "slo", "ttft, tpot and itl need streams: leave out --stream=false")
	sides := 1
	if s.Compare.Against != "" {
		sides = 2
	}
	p.Require(len(s.Judge.GPUs) <= sides, "gpus", "has %d numbers for %d endpoints", len(s.Judge.GPUs), sides)
}

// compares reports whether there are two sides.
func (s *settings) compares() bool { return len(s.modes()) == 2 || s.Compare.Against != "" }

// modes returns the compared modes, if modes are compared.
func (s *settings) modes() []string {
	if len(s.Compare.Sweep) > 0 && len(s.Compare.Modes) == 0 && s.Compare.Against == "" {
		return []string{pd.ModeForce.String(), pd.ModeBypass.String()}
	}
	return s.Compare.Modes
}

func (s *settings) rounds() int {
	switch {
	case s.Compare.Rounds > 0:
		return s.Compare.Rounds
	case s.compares():
		return enoughRounds
	}
	return 1
}

// isOpen reports whether requests are sent at given times.
func (s *settings) isOpen() bool {
	return s.Load.Rate > 0 || s.Prompts.Trace != "" && s.Load.Concurrency == 0
}

// concurrency returns the clients of a closed loop.
func (s *settings) concurrency() int {
	if s.Load.Concurrency > 0 {
		return s.Load.Concurrency
	}
	return defaultConcurrency
}
