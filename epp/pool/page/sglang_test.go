package page

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

func TestReadLoads(t *testing.T) {
	// One leg waits for its other leg: what a real engine of each mode says then.
	decodeWaits := strings.NewReplacer(`"num_waiting_reqs":0`, `"num_waiting_reqs":1`, `"num_used_tokens":0`, `"num_used_tokens":400`,
		`"decode_transfer_queue_reqs":0`, `"decode_transfer_queue_reqs":1`)
	noPages := strings.NewReplacer(`"num_waiting_reqs":0`, `"num_waiting_reqs":3`, `"decode_prealloc_queue_reqs":0`, `"decode_prealloc_queue_reqs":2`)
	secondRank := func(text string) string {
		first, second, _ := strings.Cut(text, `"dp_rank":1`)
		second = strings.Replace(second, `"num_waiting_reqs":0`, `"num_waiting_reqs":2`, 1)
		second = strings.Replace(second, `"num_used_tokens":0`, `"num_used_tokens":8192`, 1)
		return first + `"dp_rank":1` + strings.Replace(second, `"prefill_bootstrap_queue_reqs":0`, `"prefill_bootstrap_queue_reqs":2`, 1)
	}
	onPage := signals(9, 9, 0.9)
	for _, c := range []struct {
		name, file string
		change     func(string) string
		want       epp.Load
	}{
		{"a plain engine", "sglang-loads-plain.json", nil, epp.Load{Signals: signals(0, 0, 0).With(epp.Delayed, 0), Mode: epp.EnginePlain}},
		{"a decode engine", "sglang-loads-decode.json", nil, epp.Load{Signals: signals(0, 0, 0).With(epp.Delayed, 0), Mode: epp.EngineDecode}},
		{"a decode leg without its prefill leg", "sglang-loads-decode.json", decodeWaits.Replace,
			epp.Load{Signals: signals(1, 0, 400./16384).With(epp.Delayed, 1), Mode: epp.EngineDecode}},
		{"no free pages are a lack of capacity", "sglang-loads-decode.json", noPages.Replace,
			epp.Load{Signals: signals(3, 0, 0).With(epp.Delayed, 0), Mode: epp.EngineDecode}},
		{"two ranks", "sglang-loads-prefill-dp2.json", secondRank, epp.Load{Signals: signals(2, 0, 0.25).With(epp.Delayed, 2), Mode: epp.EnginePrefill,
			Ranks: &epp.Ranks{{Rank: 0}, {Rank: 1, Waiting: 2, KVUsage: 0.5}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := string(recorded(t, c.file))
			if c.change != nil {
				text = c.change(text)
			}
			got := epp.Load{Signals: onPage}
			if err := ReadLoads(strings.NewReader(text), &got); err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

func TestReadLoadsRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "no JSON": "<html>", "no loads": `{"loads":[]}`, "another answer": `{"detail":"Not Found"}`,
		"a negative number": `{"loads":[{"num_running_reqs":-1}]}`, "a text": `{"loads":[{"num_running_reqs":"1"}]}`,
		"a number beyond all engines": `{"loads":[{"num_waiting_reqs":1e300}]}`, "a negative rank": `{"loads":[{"dp_rank":-1}]}`,
	} {
		before := epp.Load{Signals: signals(1, 2, 0.5), Mode: epp.EngineDecode}
		got := before
		if err := ReadLoads(strings.NewReader(text), &got); err == nil || !reflect.DeepEqual(got, before) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestReadNoPrefixes(t *testing.T) {
	decode := recorded(t, "sglang-model-info-decode.json")
	for _, c := range []struct {
		name string
		text []byte
		want bool
	}{
		{"a plain engine", recorded(t, "sglang-model-info-plain.json"), false},
		{"a decode engine", decode, true},
		{"a decode engine with a radix cache", bytes.Replace(decode, []byte(`"radix_cache_disabled":true`), []byte(`"radix_cache_disabled":false`), 1), false},
		{"an older decode engine, which does not say", []byte(`{"disaggregation_mode":"decode"}`), true},
		{"an older prefill engine", []byte(`{"disaggregation_mode":"prefill"}`), false},
	} {
		if got, err := ReadNoPrefixes(bytes.NewReader(c.text)); err != nil || got != c.want {
			t.Errorf("%s: got %t, %v", c.name, got, err)
		}
	}
	if _, err := ReadNoPrefixes(strings.NewReader("busy")); err == nil {
		t.Error("a text that is no JSON is read")
	}
}

// TestNoticesSGLang: the page tells that SGLang writes it, also where the program is another engine's.
func TestNoticesSGLang(t *testing.T) {
	for _, c := range []struct {
		file, program, engine string
		mode                  epp.EngineMode
		err                   error
	}{
		{"sglang-plain.txt", "vllm", epp.EngineSGLang, epp.EngineAny, ErrNoValues},
		{"sglang-prefill.txt", "sglang", epp.EngineSGLang, epp.EnginePrefill, nil},
		{"vllm-load.txt", "vllm", "", epp.EngineAny, nil},
		{"triton.txt", "vllm", "", epp.EngineAny, ErrNoValues},
	} {
		got, err := new(Reader).Read(bytes.NewReader(recorded(t, c.file)), 1<<20, builtinProgram(t, c.program), &epp.Load{})
		if !errors.Is(err, c.err) || got.Engine != c.engine || got.Mode != c.mode {
			t.Errorf("%s, read as %s: engine %q, mode %v, %v", c.file, c.program, got.Engine, got.Mode, err)
		}
	}
	x := DefaultExtractor()
	programs, err := x.Compile()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		labels map[string]string
		engine string
		ok     bool
	}{
		{"no label", nil, epp.EngineSGLang, true},
		{"a label that names no engine", map[string]string{engineLabel: "mine"}, epp.EngineSGLang, true},
		{"a label that names an engine", map[string]string{engineLabel: "vllm"}, epp.EngineSGLang, false},
		{"an older label that does", map[string]string{engineLabelOlder: "vllm"}, epp.EngineSGLang, false},
		{"another engine's page", nil, "", false},
	} {
		if prog, ok := programs.Noticed(c.labels, c.engine); ok != c.ok || ok && prog != programs.byName[c.engine] {
			t.Errorf("%s: %v, %t", c.name, prog, ok)
		}
	}
}
