package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/tandem-serving/tandem/epp"
)

// Paths of SGLang's own pages beside its metrics page.
const (
	PathLoads     = "/v1/loads"
	PathModelInfo = "/model_info"
)

// sglangLimit bounds the size of SGLang's own pages (bytes): they have about 1 kB, and /v1/loads as much for each rank.
const sglangLimit = 1 << 20

// rank is what /v1/loads says of one data-parallel rank. Requests in the queues of P/D are among the waiting ones.
type rank struct {
	Rank    int     `json:"dp_rank"`
	Running float64 `json:"num_running_reqs"`
	Waiting float64 `json:"num_waiting_reqs"`
	Used    float64 `json:"num_used_tokens"`
	Most    float64 `json:"max_total_num_tokens"`
	PD      struct {
		Mode      string  `json:"mode"`
		Bootstrap float64 `json:"prefill_bootstrap_queue_reqs"` // wait for their decode engine
		InFlight  float64 `json:"prefill_inflight_queue_reqs"`  // are being transferred
		Transfer  float64 `json:"decode_transfer_queue_reqs"`   // wait for their KV cache
		Prealloc  float64 `json:"decode_prealloc_queue_reqs"`   // wait for free pages, so they are not delayed
	} `json:"disaggregation"`
}

// usage returns the used share of the rank's KV cache.
func (r *rank) usage() float64 {
	if r.Most <= 0 {
		return 0
	}
	return min(1, r.Used/r.Most)
}

func (r *rank) valid() bool {
	for _, v := range []float64{r.Running, r.Waiting, r.Used, r.Most, r.PD.Bootstrap, r.PD.InFlight, r.PD.Transfer} {
		if !epp.Count.Valid(v) {
			return false
		}
	}
	return r.Rank >= 0
}

// ReadLoads reads the answer of an SGLang engine's /v1/loads into a load, in place of what the metrics page says: that page changes
// only with the batches that the engine runs, so it shows nothing of requests whose other leg has not come yet. After an error the
// load is unchanged.
func ReadLoads(from io.Reader, load *epp.Load) error {
	var answer struct {
		Loads []rank `json:"loads"`
	}
	if err := json.NewDecoder(io.LimitReader(from, sglangLimit)).Decode(&answer); err != nil {
		return fmt.Errorf("reading the loads: %w", err)
	}
	if len(answer.Loads) == 0 {
		return errors.New("the answer has no loads")
	}
	var waiting, delayed, running, usage float64
	ranks := make(epp.Ranks, len(answer.Loads))
	for i := range answer.Loads {
		r := &answer.Loads[i]
		if !r.valid() {
			return errors.New("the answer has impossible values")
		}
		waiting, running, usage = waiting+r.Waiting, running+r.Running, usage+r.usage()
		delayed += min(r.Waiting, r.PD.Bootstrap+r.PD.InFlight+r.PD.Transfer)
		ranks[i] = epp.RankLoad{Rank: r.Rank, Waiting: r.Waiting, Running: r.Running, KVUsage: r.usage()}
	}
	load.Signals.Set(epp.Waiting, waiting)
	load.Signals.Set(epp.Delayed, delayed)
	load.Signals.Set(epp.Running, running)
	load.Signals.Set(epp.KVUsage, usage/float64(len(ranks)))
	if len(ranks) > 1 {
		load.Ranks = &ranks
	}
	if mode := epp.ParseEngineMode(answer.Loads[0].PD.Mode); mode != epp.EngineAny {
		load.Mode = mode
	}
	return nil
}

// ReadNoPrefixes reads from the answer of an SGLang engine's /model_info whether it keeps no beginnings of prompts. If the answer
// does not say so, a decode engine keeps none: they do so only on request.
func ReadNoPrefixes(from io.Reader) (bool, error) {
	var answer struct {
		Mode      string   `json:"disaggregation_mode"`
		Embedding struct { // where SGLang 0.5 has it, on engines of all kinds
			Cache struct {
				Off *bool `json:"radix_cache_disabled"`
			} `json:"cache"`
		} `json:"embedding"`
	}
	if err := json.NewDecoder(io.LimitReader(from, sglangLimit)).Decode(&answer); err != nil {
		return false, fmt.Errorf("reading what the engine serves: %w", err)
	}
	if off := answer.Embedding.Cache.Off; off != nil {
		return *off, nil
	}
	return epp.ParseEngineMode(answer.Mode) == epp.EngineDecode, nil
}
