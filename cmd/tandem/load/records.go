package load

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
)

// Record is one request in the file of --records. Times are in ms.
type Record struct {
	Point  string  `json:"point"` // length of prompts, as asked for
	Side   string  `json:"side"`
	Round  int     `json:"round"`
	Due    float64 `json:"due_ms"` // after the beginning of the round
	Unsent bool    `json:"unsent,omitempty"`

	Late float64   `json:"late_ms"` // this and the following count from when it was due
	TTFT float64   `json:"ttft_ms,omitempty"`
	E2E  float64   `json:"e2e_ms,omitempty"`
	ITL  []float64 `json:"itl_ms,omitempty"`

	Input    int64              `json:"input_tokens,omitempty"` // as the endpoint counted them
	Cached   int64              `json:"cached_tokens,omitempty"`
	Output   int                `json:"output_tokens,omitempty"`
	Decision string             `json:"decision,omitempty"` // x-tandem-pd-decision
	Phases   map[string]float64 `json:"phases_ms,omitempty"`
	Status   int                `json:"status,omitempty"` // of a request that failed
	Failure  string             `json:"failure,omitempty"`
}

// writeRecords writes every request to the file that the user named.
func (o *outputFlags) writeRecords(t *trial) (err error) {
	if o.Records == "" {
		return nil
	}
	file, err := os.Create(o.Records)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := bufio.NewWriter(file)
	lines := json.NewEncoder(w)
	for _, p := range t.points {
		for i, side := range t.sides {
			for _, r := range p.rounds[i] {
				for j := range r.samples {
					if err := lines.Encode(r.samples[j].record(p.input, side.name, r.number)); err != nil {
						return err
					}
				}
			}
		}
	}
	return w.Flush()
}

func (s *sample) record(point, side string, round int) Record {
	r := Record{Point: point, Side: side, Round: round, Due: ms(s.due), Unsent: !s.sent()}
	if r.Unsent {
		return r
	}
	a := s.answer
	r.Late, r.E2E = ms(max(0, s.lateness())), ms(s.e2e())
	if !a.First.IsZero() {
		r.TTFT = ms(s.ttft())
	}
	for _, gap := range a.Gaps {
		r.ITL = append(r.ITL, ms(gap))
	}
	r.Input, r.Cached = max(0, a.Prompt), max(0, a.Cached)
	r.Output, _ = a.Tokens()
	if a.Decision != nil {
		r.Decision = a.Decision.String()
	}
	r.Phases = phasesOf(a)
	if a.Failure != nil {
		r.Status, r.Failure = a.Failure.Status, a.Failure.Reason
	}
	return r
}
