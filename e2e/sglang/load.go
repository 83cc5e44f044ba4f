package sglang

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// Load is what an engine holds at one moment, over all its ranks.
type Load struct {
	Pairing int // legs that wait for the other leg, or for KV to move
	Waiting int // further requests that wait
	Running int
	Tokens  int // of the KV pool that requests have; those that only the prefix cache has are free
}

// Load asks the engine. Its metrics page does not do: its gauges stand still while legs wait.
func (e *Engine) Load(ctx context.Context) (Load, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.Address()+"/v1/loads", nil)
	if err != nil {
		return Load{}, err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return Load{}, fmt.Errorf("asking for the load: %w", err)
	}
	defer response.Body.Close()
	var page struct {
		Loads []struct {
			Running int `json:"num_running_reqs"`
			Waiting int `json:"num_waiting_reqs"`
			Tokens  int `json:"num_used_tokens"`
			PD      struct {
				Bootstrap int `json:"prefill_bootstrap_queue_reqs"`
				Inflight  int `json:"prefill_inflight_queue_reqs"`
				Prealloc  int `json:"decode_prealloc_queue_reqs"`
				Transfer  int `json:"decode_transfer_queue_reqs"`
			} `json:"disaggregation"`
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&page); err != nil || len(page.Loads) == 0 {
		return Load{}, fmt.Errorf("reading the load: %s, %d ranks: %w", response.Status, len(page.Loads), err)
	}
	var sum Load
	for _, rank := range page.Loads {
		sum.Pairing += rank.PD.Bootstrap + rank.PD.Inflight + rank.PD.Prealloc + rank.PD.Transfer
		sum.Waiting += rank.Waiting
		sum.Running += rank.Running
		sum.Tokens += rank.Tokens
	}
	return sum, nil
}
