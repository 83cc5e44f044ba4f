package replay

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp/scale"
	"github.com/tandem-serving/tandem/epp/shadow"
	"github.com/tandem-serving/tandem/pd"
)

// Record is what became of one request.
type Record struct {
	Index         int           // in the trace, from 0
	Class         int           // in Result.Classes
	Due           time.Duration // when it arrived
	Input, Output int           // tokens
	Queued        time.Duration // in the picker, before it was picked for or refused
	Refused       bool          // by the picker, which leaves the fields below Reason zero, or after the pick: evicted, or over the fallback budget
	Reason        pd.Reason
	Evicted       bool // after the pick, for a more important request
	FellBack      bool // decode computed the prompt because it could not use the hand-off
	Remote        bool
	Prefill       string // name of the engine; "" without remote prefill
	Decode        string
	Cached        int           // tokens of the prompt in the prefix cache, or the host's memory, of the engine that computed it
	Loaded        int           // how many of these the engine loaded from its host's memory
	Moved         int           // tokens whose KV cache crossed the network
	Preempted     int           // times, on all engines
	Waited        time.Duration // in the queues of engines, before it was first scheduled there
	TTFT, E2E     time.Duration
}

// TPOT returns the time of each token after the first one; ok is false if there is only one token.
func (r *Record) TPOT() (d time.Duration, ok bool) {
	if r.Refused || r.Output < 2 {
		return 0, false
	}
	return (r.E2E - r.TTFT) / time.Duration(r.Output-1), true
}

// Result is what a run gave.
type Result struct {
	Records []Record      // in the order of the trace
	Classes []Class       // of the trace
	End     time.Duration // when the last answer ended
	GPUs    int           // of the pool as it begins
	KVBytes float64       // that crossed the network
	// Unfinished is how many other requests had not ended when the last one arrived.
	Unfinished int
	Story      *Story   // of the request that Options.Explain names; nil if it names none
	Timeline   []Sample // in the order of time; at each moment one of each role
	Sizes      []Resize // by Options.Scaling, in the order of time; nil without it
	// Needed is what the plugin replica-sizer says that such requests need if as many come in a second as did on average, by what the first picker
	// has learnt at the end; nil without the plugin.
	Needed *scale.Needed
	// Shadow is what Options.Shadow would have decided, of the first picker; nil without it.
	Shadow *shadow.View

	engineTime time.Duration // sum of the times that engines were there, if Options.Scaling is set
	perEngine  int           // GPUs
	itl        histogram
	shares     []Share        // without requests
	shareOf    map[string]int // indices in shares by names of engines
}

// SLO is what a request must meet. A bound of 0 holds for every request.
type SLO struct{ TTFT, TPOT time.Duration }

// or returns the SLO, or another one if it has no bounds.
func (s SLO) or(other SLO) SLO {
	if s == (SLO{}) {
		return other
	}
	return s
}

// Met reports whether a request met it. A request that was refused did not.
func (s SLO) Met(r *Record) bool {
	tpot, _ := r.TPOT()
	return !r.Refused && (s.TTFT == 0 || r.TTFT <= s.TTFT) && (s.TPOT == 0 || tpot <= s.TPOT)
}

// Quantiles are percentiles, in milliseconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
}

// Summary is a result in few numbers.
type Summary struct {
	Requests    int
	Refused     int
	TTFT, TPOT  Quantiles
	ITL, E2E    Quantiles
	Waited      Quantiles // in the queues of engines
	Queued      Quantiles // in the picker
	Met         float64   // share of the requests that met the SLO
	Goodput     float64   // requests in a second that met the SLO
	Throughput  float64   // tokens of answers in a second
	PerGPU      float64   // tokens of answers in a second, for each GPU of the pool
	RemoteShare float64   // of the requests that were not refused
	GPUSeconds  float64   // GPUs of the pool, as long as the run took; of a pool that scales, as long as each engine had them
	Cost        float64   // of the pool, as long as the run took, by what variants cost for an hour; 0 without variants
	PerMet      float64   // Cost for each 1,000 requests that met the SLO
	Reversals   int       // of a pool that scales: how often within ten minutes the size of a role changed its direction, at most
	HitRate     float64   // share of the prompts' tokens that prefix caches had, or the hosts' memory
	LoadRate    float64   // share of them that were loaded from the hosts' memory
	KVBytes     float64   // that crossed the network
	Preemptions int
	Evicted     int // requests that were picked for, and ended for more important ones
	FellBack    int // requests whose hand-off could not be used, so that decode computed the prompt
	Unfinished  int // other requests that had not ended when the last one arrived
}

// Summary returns the numbers of a result. slo is what the requests of classes without an SLO of their own must meet.
func (r *Result) Summary(slo SLO) Summary {
	s := r.summary(slo, "", true)
	s.KVBytes, s.GPUSeconds, s.ITL, s.Unfinished = r.KVBytes, float64(r.GPUs)*r.End.Seconds(), r.itl.quantiles(), r.Unfinished
	for _, share := range r.shares {
		s.Cost += share.Cost * r.End.Hours()
	}
	if met := s.Met * float64(s.Requests); met > 0 {
		s.PerMet = 1000 * s.Cost / met
	}
	if r.engineTime > 0 && r.End > 0 {
		s.GPUSeconds = r.engineTime.Seconds() * float64(r.perEngine)
		s.PerGPU = s.Throughput * r.End.Seconds() / s.GPUSeconds
		s.Reversals = reversals(r.Sizes, 10*time.Minute)
	}
	return s
}

// Load returns the requests that arrived in a second.
func (r *Result) Load() float64 {
	last := time.Duration(0)
	for i := range r.Records {
		last = max(last, r.Records[i].Due)
	}
	if last == 0 {
		return 0
	}
	return float64(len(r.Records)-1) / last.Seconds()
}

// Refusals returns how many requests were refused for each reason.
func (r *Result) Refusals() map[pd.Reason]int {
	all := map[pd.Reason]int{}
	for i := range r.Records {
		if one := &r.Records[i]; one.Refused {
			all[one.Reason]++
		}
	}
	return all
}

// ClassSummary is what became of the requests of one class.
type ClassSummary struct {
	Name    string
	SLO     SLO
	Summary // without ITL, KVBytes, GPUSeconds and Unfinished, which are of all requests
}

// ByClass returns a summary for each name of a class, in the order of the classes; nil if there are none.
func (r *Result) ByClass(slo SLO) (all []ClassSummary) {
	for _, c := range r.Classes {
		if !slices.ContainsFunc(all, func(other ClassSummary) bool { return other.Name == c.Name }) {
			all = append(all, ClassSummary{c.Name, c.SLO.or(slo), r.summary(slo, c.Name, false)})
		}
	}
	return all
}

// summary returns the numbers of the requests of a class, or of every one.
func (r *Result) summary(slo SLO, class string, every bool) (s Summary) {
	var ttft, tpot, e2e, waited, queued []time.Duration
	var met, remote, input, cached, loaded, output int
	for i := range r.Records {
		one := &r.Records[i]
		if !every && r.Classes[one.Class].Name != class {
			continue
		}
		s.Requests++
		if one.Evicted {
			s.Evicted++
		}
		if one.Refused {
			s.Refused++
			continue
		}
		if one.FellBack {
			s.FellBack++
		}
		ttft, e2e, waited, queued = append(ttft, one.TTFT), append(e2e, one.E2E), append(waited, one.Waited), append(queued, one.Queued)
		if d, ok := one.TPOT(); ok {
			tpot = append(tpot, d)
		}
		if r.must(one, slo).Met(one) {
			met++
		}
		if one.Remote {
			remote++
		}
		input, cached, loaded, output = input+one.Input, cached+one.Cached, loaded+one.Loaded, output+one.Output
		s.Preemptions += one.Preempted
	}
	s.TTFT, s.TPOT, s.E2E, s.Waited, s.Queued = quantiles(ttft), quantiles(tpot), quantiles(e2e), quantiles(waited), quantiles(queued)
	if s.Requests > 0 {
		s.Met = float64(met) / float64(s.Requests)
	}
	if answered := len(ttft); answered > 0 && r.End > 0 {
		s.Goodput, s.Throughput = float64(met)/r.End.Seconds(), float64(output)/r.End.Seconds()
		s.PerGPU = s.Throughput / float64(max(1, r.GPUs))
		s.RemoteShare, s.HitRate, s.LoadRate = float64(remote)/float64(answered), float64(cached)/float64(input), float64(loaded)/float64(input)
	}
	return s
}

// quantiles sorts all.
func quantiles(all []time.Duration) Quantiles {
	slices.Sort(all)
	at := func(q float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return float64(all[max(0, int(math.Ceil(q*float64(len(all))))-1)]) / 1e6
	}
	return Quantiles{at(0.5), at(0.95), at(0.99)}
}

// histogram counts times in buckets that differ by a hundredth, so that the gaps of millions of tokens take little memory.
type histogram struct {
	buckets [2400]int
	all     int
}

const bucketRatio = 1.01

func (h *histogram) add(d time.Duration, n int) {
	i := int(math.Log(max(1, float64(d)/1e3)) / math.Log(bucketRatio)) // from 1 µs
	h.buckets[min(i, len(h.buckets)-1)] += n
	h.all += n
}

func (h *histogram) quantiles() Quantiles {
	at := func(q float64) float64 {
		need := int(math.Ceil(q * float64(h.all)))
		for i, n := range h.buckets {
			if need -= n; need <= 0 && h.all > 0 {
				return math.Pow(bucketRatio, float64(i)+0.5) / 1e3
			}
		}
		return 0
	}
	return Quantiles{at(0.5), at(0.95), at(0.99)}
}
