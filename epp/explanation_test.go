package epp_test

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func TestExplain(t *testing.T) {
	r := &epp.Request{API: pd.APIChat, Model: "m", Stream: true, Mode: pd.ModeForce, Prompt: epp.Prompt{Tokens: 9, Blocks: []uint64{1, 2}}}
	stages := epp.Stages{epp.DecodeRow("decode"), epp.PrefillRow("prefill", 1)}
	d := &epp.Decision{Picks: []epp.StagePick{{Row: &stages[0], Endpoints: pods(2)}, {Row: &stages[1], Endpoints: pods(1)}}, Verdict: pd.Remote, Reason: pd.Forced, Tokens: 9, Cached: 16,
		Trace: &epp.Trace{Deciders: []epp.DeciderTrace{{Stage: epp.StagePrefill, Split: true, Decider: "threshold"}}}}
	t.Run("served", func(t *testing.T) {
		x := epp.Explain(r, d, nil)
		if want := (epp.RequestSummary{API: "chat", Model: "m", Stream: true, Mode: "force", Split: true, Tokens: 9, Blocks: 2}); x.Request != want {
			t.Errorf("request %+v", x.Request)
		}
		if x.Decision != "remote" || x.Reason != pd.Forced || x.Refusal != nil || x.Trace != d.Trace {
			t.Errorf("got %+v", x)
		}
		if len(x.Endpoints(epp.StageDecode)) != 2 || !slices.Equal(x.Endpoints(epp.StagePrefill), []string{"10.0.0.1:8000"}) {
			t.Errorf("picks %v", x.Picks)
		}
		want := map[string]string{"x-gateway-destination-endpoint": "10.0.0.1:8000,10.0.0.1:8000", "x-prefiller-host-port": "10.0.0.1:8000",
			"x-tandem-plan": "remote;id=0000000000000000;reason=forced;strict=0;epp=0"}
		if !maps.Equal(x.Headers, want) {
			t.Errorf("headers %q", x.Headers)
		}
		if want := (epp.DeciderNumbers{Name: "threshold", Tokens: 9, Cached: 16}); !reflect.DeepEqual(x.Decider, want) {
			t.Errorf("decider %+v", x.Decider)
		}
	})
	t.Run("refused", func(t *testing.T) {
		x := epp.Explain(r, nil, pd.Refuse(pd.NoEndpoint, "None."))
		if x.Decision != "refused" || x.Reason != pd.NoEndpoint || x.Refusal.Status != 503 || x.Refusal.Message != "None." || x.Picks == nil {
			t.Errorf("got %+v, %+v", x, x.Refusal)
		}
	})
	t.Run("unreadable", func(t *testing.T) {
		x := epp.Explain(nil, nil, errors.New("secret"))
		if x.Reason != pd.InternalError || x.Request != (epp.RequestSummary{}) {
			t.Errorf("got %+v", x)
		}
	})
}

func TestExplainRewrites(t *testing.T) {
	r := &epp.Request{API: pd.APIChat, Model: "big", Asked: "llama", Rewrite: "canary", Objective: "fast", Priority: 7, Known: true}
	decode := epp.DecodeRow("decode")
	x := epp.Explain(r, &epp.Decision{Picks: []epp.StagePick{{Row: &decode, Endpoints: pods(1)}}, Verdict: pd.Local, Reason: pd.ShortPrompt}, nil)
	q := x.Request
	if q.Model != "big" || q.Asked != "llama" || q.Rewrite != "canary" || q.Objective != "fast" || q.Priority != 7 || !q.Known {
		t.Errorf("request %+v", q)
	}
	if got := x.Headers[pd.HeaderModel]; got != "llama;answers=big" {
		t.Errorf("headers %q", x.Headers)
	}
}
