package shadow

import (
	"math"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
)

// View is a report at one time, as /debug/shadow writes it.
type View struct {
	Config string    `json:"config"` // name of the shadow's configuration
	Since  time.Time `json:"since"`  // when it came into use
	Picks  int       `json:"picks"`  // that were compared
	// Confidence is that of the intervals.
	Confidence float64 `json:"confidence"`
	All        Group   `json:"all"`   // picks that neither refused
	Kinds      []Group `json:"kinds"` // by what differs, the most frequent first
	// How well the model has predicted what was done. Intervals are wider by its bias.
	TTFT   latency.Calibration `json:"predicted_ttft"`
	ITL    latency.Calibration `json:"predicted_itl"`
	Latest []Difference        `json:"latest"` // differences, the latest first
}

// Group is the picks of a kind.
type Group struct {
	Kind  Kind `json:"kind,omitempty"`
	Picks int  `json:"picks"`
	TTFT  Gain `json:"ttft_gain"`
	ITL   Gain `json:"itl_gain"`
}

// Gain is how much less time, in seconds, requests of a group are expected to take by the shadow's decisions, on average; less than 0: more time. The
// shadow's prompts wait for each other, and what they take from answers of other requests is in the gain of ITL. Queues on metrics pages, and the use of
// KV caches, are those of the pool as it is. With the confidence of the View it is from Low to High.
type Gain struct {
	Mean float64 `json:"mean_seconds"`
	Low  float64 `json:"low_seconds"`
	High float64 `json:"high_seconds"`
	Live float64 `json:"live_seconds"` // mean that is expected of what was done
}

// Difference is one request about which the decisions differ.
type Difference struct {
	At      time.Time `json:"at"`
	Request string    `json:"request"` // its id
	Kind    Kind      `json:"kind"`
	Tokens  int       `json:"prompt_tokens"`
	Live    Decision  `json:"live"`
	Shadow  Decision  `json:"shadow"`
}

// Decision is where a request goes, and what is expected of it.
type Decision struct {
	Verdict string  `json:"verdict"`
	Reason  string  `json:"reason,omitempty"`
	Decode  string  `json:"decode,omitempty"` // first choice of the first stage
	Prefill string  `json:"prefill,omitempty"`
	TTFT    float64 `json:"predicted_ttft_seconds,omitempty"`
	ITL     float64 `json:"predicted_itl_seconds,omitempty"`
}

// tally sums up the picks of a kind.
type tally struct {
	picks     int
	ttft, itl sum
}

// add adds a pick. The shadow's decision takes so many seconds less from each token of other answers.
func (t *tally) add(live, shadow epp.Expected, others float64) {
	t.ttft.add(live.TTFT, shadow.TTFT, 0)
	t.itl.add(live.TPOT, shadow.TPOT, others)
}

func (t *tally) group(kind Kind, v *View) Group {
	return Group{Kind: kind, Picks: t.picks, TTFT: t.ttft.gain(&v.TTFT), ITL: t.itl.gain(&v.ITL)}
}

// sum is the gains of picks, in seconds.
type sum struct {
	n             float64
	gain1, gain2  float64 // sums of gains, and of their squares
	live, changed float64 // sums of what is expected of what was done, and of what differs from it
	noise         float64 // sum of the variances of single predictions
}

// add adds a pick, which brings so much more to other requests.
func (s *sum) add(live, shadow epp.Quantiles, others float64) {
	if live.P50 <= 0 || shadow.P50 <= 0 {
		return
	}
	gain := (live.P50 - shadow.P50).Seconds() + others
	s.n++
	s.gain1 += gain
	s.gain2 += gain * gain
	s.live += live.P50.Seconds()
	if gain != 0 {
		s.changed += (live.P50 + shadow.P50).Seconds() / 2
		s.noise += square((live.P90-live.P50).Seconds()/toP90) + square((shadow.P90-shadow.P50).Seconds()/toP90)
	}
}

func square(x float64) float64 { return x * x }

// gain returns the mean gain and its interval. The interval has the spread of gains, the spread of what single requests take, and the bias that
// predictions of what was done have had: it may be that of one of the two alternatives alone.
func (s *sum) gain(c *latency.Calibration) (g Gain) {
	if s.n == 0 {
		return g
	}
	g.Mean, g.Live = s.gain1/s.n, s.live/s.n
	variance := max(0, s.gain2/s.n-g.Mean*g.Mean) + s.noise/s.n
	half := normal90*math.Sqrt(variance/s.n) + c.RelativeBias()*s.changed/s.n
	g.Low, g.High = g.Mean-half, g.Mean+half
	return g
}
