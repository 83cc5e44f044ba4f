package demo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/tandem-serving/tandem/pd"
)

// answerTokens is the length of every answer. The model never ends one by itself.
const answerTokens = 16

// question is one request of the demo.
type question struct {
	number int // from 1; part of the prompt, so that no prompt finds another one's KV in a prefix cache
	api    pd.API
	stream bool
	remote bool // a long prompt that is planned to be prefilled remotely
}

// questions is every combination of API, answer form and plan.
func questions() (all []question) {
	for _, api := range []pd.API{pd.APIChat, pd.APICompletions} {
		for _, stream := range []bool{false, true} {
			for _, remote := range []bool{false, true} {
				all = append(all, question{len(all) + 1, api, stream, remote})
			}
		}
	}
	return all
}

// prompt is a few tokens for a local request and some hundred for a remote one, of a different number of blocks for each.
func (q question) prompt() string {
	prompt := fmt.Sprintf("%d is the number of this request. ", q.number)
	if q.remote {
		prompt += strings.Repeat("Its prompt is long, so that another engine computes it and the blocks have to travel. ", 4+2*q.number)
	}
	return prompt
}

func (q question) body() ([]byte, error) {
	body := map[string]any{
		"model": modelName, "max_tokens": answerTokens, "temperature": 0, "stream": q.stream, "return_token_ids": true,
	}
	if q.api == pd.APIChat {
		body["messages"] = []map[string]string{{"role": "user", "content": q.prompt()}}
	} else {
		body["prompt"] = q.prompt()
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("writing request %d: %w", q.number, err)
	}
	return b, nil
}

// plan is what a picker would decide.
func (q question) plan() pd.Plan {
	p := pd.Plan{Verdict: pd.Local, Reason: pd.BelowThreshold, ID: fmt.Sprintf("%016x", q.number)}
	if q.remote {
		p.Verdict, p.Reason = pd.Remote, pd.Uncached
	}
	return p
}

// header is what a picker would send to the sidecar, and that the client takes trailers.
func (q question) header(prefill string) http.Header {
	h := http.Header{}
	h.Set(pd.HeaderPlan, q.plan().String())
	h.Set("TE", "trailers")
	if q.remote {
		h.Set(pd.HeaderPrefill, prefill)
	}
	return h
}
