package replay

import (
	"context"
	"fmt"

	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/replay"
)

// scalerSize is what the plugin replica-sizer says about the requests of a run.
type scalerSize struct {
	Attainment float64 `json:"attainment"` // share of the requests that are to meet the objective
	Prefill    int     `json:"prefill"`    // engines
	Decode     int     `json:"decode"`
}

// anyTime is a time that every request meets, in milliseconds.
const anyTime = 3_600_000

// mostSized is how many engines of a role replica-sizer may want.
const mostSized = 1024

// withSizer returns a configuration with replica-sizer, which computes sizes and decides nothing.
func withSizer(c *config.Config, pool replay.Pool, slo replay.SLO) (*config.Config, error) {
	role := func(most int) map[string]any { return map[string]any{"minReplicas": 0, "maxReplicas": most} }
	parameters := map[string]any{"ttftMs": float64(anyTime), "tpotMs": float64(anyTime), "attainment": enough, "prefill": role(mostSized), "decode": role(mostSized)}
	if slo.TTFT > 0 {
		parameters["ttftMs"] = millis(slo.TTFT)
	}
	if slo.TPOT > 0 {
		parameters["tpotMs"] = millis(slo.TPOT)
	}
	if pool.Prefill == 0 {
		parameters["prefill"] = role(0)
	}
	return changed(c, func(all map[string]any) {
		plugins, _ := all["plugins"].([]any)
		all["plugins"] = append(plugins, map[string]any{"type": bySizer, "parameters": parameters})
	})
}

// mostResized bounds how often a pool is replayed with the sizes that the last replay gave.
const mostResized = 4

// sizeByScaler returns the engines that replica-sizer has for the requests of a run, if as many come in a second as their mean. The requests are
// replayed on the pool of the run, and, as long as that is too small by what the plugin learns there, on one as large as it says: the times of
// a pool that is too small are those of queues.
func sizeByScaler(ctx context.Context, r *run, slo replay.SLO) (*scalerSize, error) {
	o := r.options
	o.Ended = nil
	c, err := withSizer(o.Config, o.Pool, slo)
	if err != nil {
		return nil, fmt.Errorf("adding %s: %w", bySizer, err)
	}
	o.Config = c
	for n := 1; ; n++ {
		result, err := replay.Run(ctx, o, r.requests)
		if err != nil {
			return nil, fmt.Errorf("replaying %v with %s: %w", o.Pool, bySizer, err)
		}
		s := &scalerSize{enough, result.Needed.Prefill, result.Needed.Decode}
		larger := s.pool(o.Pool)
		if larger.Prefill <= o.Pool.Prefill && s.Decode <= o.Pool.Decode+o.Pool.Both || n == mostResized || larger.Engines() > mostSized {
			return s, nil
		}
		o.Pool = larger
	}
}

// pool returns the pool of these engines. One that had prefill engines keeps one.
func (s *scalerSize) pool(before replay.Pool) replay.Pool {
	if before.Prefill == 0 {
		return replay.Pool{Both: s.Decode}
	}
	return replay.Pool{Prefill: max(1, s.Prefill), Decode: s.Decode}
}

// words says it as a sentence.
func (s *scalerSize) words(slo string) string {
	engines := fmt.Sprintf("%d shared engines", s.Decode)
	if s.Prefill > 0 {
		engines = fmt.Sprintf("%d prefill and %d decode engines", s.Prefill, s.Decode)
	}
	return fmt.Sprintf("The scaler (%s, attainment: %v) would have %s for as many requests within %s.", bySizer, s.Attainment, engines, slo)
}
