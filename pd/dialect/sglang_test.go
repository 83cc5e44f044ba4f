package dialect_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

// sglangLegs returns the legs of a request at a prefill engine that answers /server_info with info.
func sglangLegs(t *testing.T, o dialect.Options, info string, in string) (prefill, decode string, err error) {
	t.Helper()
	o.Ask = func(_ context.Context, _ pd.Target, path string) ([]byte, error) {
		if info == "" {
			return nil, errors.New("connection refused")
		}
		return []byte(info), nil
	}
	d, _ := dialect.New("sglang", o)
	var scan body.Scanner
	table := request.NewTable(d.(dialect.Stripper).Strips())
	scan.Reset(table.Members(), body.Limits{}, nil)
	if _, err := scan.Write([]byte(in)); err != nil {
		t.Fatal(err)
	}
	b := &body.Body{}
	b.Append([]byte(in))
	a, err := d.Attempt(t.Context(), table.Request(pd.APICompletions, b, &scan), pd.Target{Host: "10.0.0.7", Port: 8000})
	if err != nil {
		return "", "", err
	}
	l, err := a.Prefill()
	prefill = text(t, l, err)
	l, err = a.(dialect.Rendezvous).Handoff().Decode()
	return prefill, text(t, l, err), nil
}

func TestSGLangServer(t *testing.T) {
	cases := []struct {
		name   string
		port   int // the operator's
		info   string
		want   string // in both legs
		lacks  string
		failed bool
	}{
		{"port of the engine", 0, `{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":9001,"dp_size":1}`, `"bootstrap_port":9001`, "rank", false},
		{"port of the operator", 9002, `{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":9001}`, `"bootstrap_port":9002`, "rank", false},
		{"port of the operator, and an engine that cannot be asked", 9002, "", `"bootstrap_port":9002`, "rank", false},
		{"an engine that cannot be asked", 0, "", "", "", true},
		{"an engine in another mode", 0, `{"disaggregation_mode":"null","disaggregation_bootstrap_port":8998}`, "", "", true},
		{"no port", 0, `{"disaggregation_mode":"prefill"}`, "", "", true},
		{"no JSON", 0, `<html>`, "", "", true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			prefill, decode, err := sglangLegs(t, dialect.Options{BootstrapPort: c.port}, c.info, `{"prompt":"x"}`)
			if (err != nil) != c.failed {
				t.Fatal(err)
			}
			for _, leg := range []string{prefill, decode} {
				if !c.failed && (!strings.Contains(leg, c.want) || strings.Contains(leg, c.lacks) || !strings.Contains(leg, `"bootstrap_host":"10.0.0.7"`)) {
					t.Errorf("leg %s, want %s", leg, c.want)
				}
			}
		})
	}
}

// Both legs name the rank of a prefill engine, and only prefill is routed by it: decode's own ranks are others.
func TestSGLangRanks(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		prefill, decode, err := sglangLegs(t, dialect.Options{}, `{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":9001,"dp_size":2}`, `{"prompt":"x"}`)
		if err != nil {
			t.Fatal(err)
		}
		var legs [2]struct {
			Routed *int `json:"routed_dp_rank"`
			Rank   *int `json:"disagg_prefill_dp_rank"`
		}
		for i, leg := range []string{prefill, decode} {
			if err := json.Unmarshal([]byte(leg), &legs[i]); err != nil {
				t.Fatal(err)
			}
		}
		p, d := legs[0], legs[1]
		if p.Routed == nil || p.Rank == nil || d.Rank == nil || d.Routed != nil || *p.Routed != *p.Rank || *p.Rank != *d.Rank {
			t.Fatalf("prefill leg %s, decode leg %s", prefill, decode)
		}
		seen[*d.Rank] = true
	}
	if len(seen) != 2 {
		t.Errorf("100 attempts went to the ranks %v", seen)
	}
}

// A prefill engine is asked once, and again after an attempt failed, though not at once.
func TestSGLangAsksOnce(t *testing.T) {
	times := 0
	d, _ := dialect.New("sglang", dialect.Options{Ask: func(context.Context, pd.Target, string) ([]byte, error) {
		times++
		return []byte(`{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":9001}`), nil
	}})
	for range 3 {
		a, err := d.Attempt(t.Context(), asked(t, pd.APIChat, `{"messages":[]}`), pd.Target{Host: "10.0.0.7", Port: 8000})
		if err != nil {
			t.Fatal(err)
		}
		a.(dialect.Aborter).Abort(pd.RolePrefill)
	}
	if times != 1 {
		t.Errorf("asked %d times", times)
	}
}

func TestSGLangFit(t *testing.T) {
	d, _ := dialect.New("sglang", dialect.Options{})
	cases := []struct {
		api     pd.API
		in      string
		fit     request.Fit
		choices int
	}{
		{pd.APICompletions, `{"prompt":["a","b"]}`, request.FitSplit, 1},
		{pd.APICompletions, `{"prompt":[[1,2],[3]],"n":2}`, request.FitSplit, 2},
		{pd.APIChat, `{"messages":[],"n":128}`, request.FitSplit, 128},
		{pd.APIChat, `{"messages":[],"n":129}`, request.FitLocal, 1},
		{pd.APIChat, `{"messages":[],"n":"2"}`, request.FitDoubted, 1},
		{pd.APIChat, `{"messages":[],"max_tokens":"7"}`, request.FitSplit, 1}, // SGLang takes it
		{pd.APIChat, `{"messages":[],"stream":1}`, request.FitDoubted, 1},
		{pd.APICompletions, `{"prompt":"x","echo":true,"logprobs":1}`, request.FitSplit, 1},
		{pd.APICompletions, `{"prompt":"x","use_beam_search":true}`, request.FitLocal, 1},
		{pd.APISGLang, `{"text":"x"}`, request.FitSplit, 1},
		{pd.APISGLang, `{"input_ids":[1,2],"sampling_params":{"max_new_tokens":4}}`, request.FitSplit, 1},
		{pd.APISGLang, `{"text":"x","sampling_params":{"n":3}}`, request.FitSplit, 3},
		{pd.APISGLang, `{"text":"x","sampling_params":[{"n":3}]}`, request.FitLocal, 1},
		{pd.APISGLang, `{"text":"x","return_logprob":true}`, request.FitSplit, 1},
		{pd.APISGLang, `{"text":"x","return_logprob":true,"logprob_start_len":0}`, request.FitSplit, 1},
		{pd.APISGLang, `{"input_embeds":[[0.5]]}`, request.FitLocal, 1},
		{pd.APISGLang, `{}`, request.FitDoubted, 1},
		{pd.APIResponses, `{"input":"x","previous_response_id":"r"}`, request.FitLocal, 1},
	}
	for _, c := range cases {
		if fit, choices := dialect.Fit(d, asked(t, c.api, c.in)); fit != c.fit || choices != c.choices {
			t.Errorf("%s %s: fit %d, %d choices; want %d, %d", c.api, c.in, fit, choices, c.fit, c.choices)
		}
	}
}

func TestSGLangCheck(t *testing.T) {
	d, _ := dialect.New("sglang", dialect.Options{})
	for in, right := range map[string]bool{
		`{"prompt":"x"}`: true, `{"prompt":["x","y"]}`: true, `{"prompt":[1]}`: true, `{"prompt":[[1],[2,3]]}`: true,
		`{"prompt":""}`: false, `{"prompt":[]}`: false, `{"prompt":["x",""]}`: false, `{"prompt":[[1],[]]}`: false, `{"prompt":["x",[1]]}`: false, `{"prompt":["-1"]}`: true,
		`{"prompt":[1,-1]}`: false, `{"prompt":[[1],[2,-1]]}`: false, `{"prompt":[1,"-1"]}`: false, `{"prompt":[1e3]}`: false, `{"prompt":[1000000]}`: false,
		`{"prompt":[[1],7]}`: false, `{"prompt":7}`: false, `{}`: false,
		`{"prompt":[` + strings.Repeat(`"x",`, 1024) + `"x"]}`: false,
	} {
		if err := d.(dialect.Checker).Check(asked(t, pd.APICompletions, in)); (err == nil) != right {
			t.Errorf("%.60s: %v", in, err)
		}
	}
	for in, right := range map[string]bool{
		`{"text":""}`: false, `{"text":"x","input_ids":[1]}`: false, `{"input_ids":[[1],[]]}`: false, `{"text":["a"]}`: true, `{"text":"x","input_ids":null}`: true,
		`{"input_ids":[1,2]}`: true, `{"input_ids":[1,-2]}`: false, `{"input_ids":[[1],[-2]]}`: false, `{"input_ids":[1.5]}`: false, `{"input_ids":["7"]}`: false,
		`{"input_ids":[1],"input_ids":[-1]}`: false,
	} {
		if err := d.(dialect.Checker).Check(asked(t, pd.APISGLang, in)); (err == nil) != right {
			t.Errorf("%s: %v", in, err)
		}
	}
	for in, right := range map[string]bool{`{"messages":[]}`: true, `{"messages":[],"input_ids":[1]}`: true, `{"messages":[],"input_ids":[1,-1]}`: false} {
		if err := d.(dialect.Checker).Check(asked(t, pd.APIChat, in)); (err == nil) != right {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// Decode looks for a former process of prefill only if there was one, and requests wait at both engines for each other.
func TestSGLangMisrouted(t *testing.T) {
	cases := []struct {
		name               string
		before, after      string // random seeds of the process that served, and of the one that is there
		bootstrap, waiting int
		want               bool
	}{
		{"another process", "1", "2", 1, 1, true},
		{"the same process", "1", "1", 1, 1, false},
		{"no process has served", "", "2", 1, 1, false},
		{"prefill computes", "1", "2", 0, 1, false},
		{"decode has no pages", "1", "2", 1, 0, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seed := c.before
				d, _ := dialect.New("sglang", dialect.Options{Ask: func(context.Context, pd.Target, string) ([]byte, error) {
					return fmt.Appendf(nil, `{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"random_seed":%s}`, cmp.Or(seed, "0")), nil
				}})
				attempt := func() dialect.Attempt {
					a, err := d.Attempt(t.Context(), asked(t, pd.APICompletions, `{"prompt":"x"}`), pd.Target{Host: "10.0.0.7", Port: 8000})
					if err != nil {
						t.Fatal(err)
					}
					return a
				}
				if c.before != "" {
					if _, err := attempt().Accept([]byte(`{"choices":[]}`)); err != nil {
						t.Fatal(err)
					}
				}
				seed = c.after
				silent := attempt()
				<-time.After(4 * time.Second)
				got, err := silent.(dialect.Rerouter).Misrouted(t.Context(), func(_ context.Context, role pd.Role, path string) ([]byte, error) {
					queues := map[pd.Role]string{pd.RolePrefill: fmt.Sprintf(`"prefill_bootstrap_queue_reqs":%d`, c.bootstrap), pd.RoleDecode: fmt.Sprintf(`"decode_transfer_queue_reqs":%d`, c.waiting)}
					return []byte(`{"loads":[{"disaggregation":{"decode_prealloc_queue_reqs":1,"prefill_inflight_queue_reqs":1}},{"disaggregation":{` + queues[role] + `}}]}`), nil
				})
				if got != c.want || err != nil {
					t.Errorf("%v, %v; want %v", got, err, c.want)
				}
			})
		})
	}
}

// The leg after which decode has forgotten a process is a stream of one token, with numbers of its own.
func TestSGLangForget(t *testing.T) {
	a := sglangAttempt(t, pd.APICompletions, `{"prompt":"x"}`)
	a.(dialect.Ranked).UseRanks(0, pd.RankOf(2))
	var leg struct {
		Stream bool
		Room   json.Number `json:"bootstrap_room"`
		Host   string      `json:"bootstrap_host"`
		Rank   int         `json:"routed_dp_rank"`
	}
	path, one := a.(dialect.Rerouter).Forget()
	if err := json.Unmarshal(one, &leg); err != nil || path != "/generate" || !leg.Stream || leg.Host != "10.0.0.7" || leg.Rank != 2 || leg.Room == "0" {
		t.Errorf("%s %s: %v", path, one, err)
	}
	if _, another := a.(dialect.Rerouter).Forget(); string(another) == string(one) {
		t.Error("two legs have the same numbers")
	}
}
