package jinja

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "record the results of transformers anew; needs .tools/tokenizers")

// reference is a case that is compared with what transformers makes of it.
type reference struct {
	Template    string          `json:"template"`
	Vars        json.RawMessage `json:"vars"`
	Unsupported bool            `json:"unsupported"` // it must be an error here
}

var generous = Options{Steps: 1_000_000, Output: 1 << 20, Now: time.Date(2026, 3, 9, 8, 7, 6, 0, time.UTC)}

// variables reads the variables of a case.
func variables(t testing.TB, data []byte) map[string]Value {
	t.Helper()
	if data == nil {
		return nil
	}
	v, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]Value{}
	for _, key := range v.(*Dict).Keys() {
		out[key], _ = v.(*Dict).Get(key)
	}
	return out
}

func render(t testing.TB, source string, vars map[string]Value, o Options) (string, error) {
	t.Helper()
	template, err := Parse(source)
	if err != nil {
		return "", err
	}
	out, err := template.Append(t.Context(), nil, vars, o)
	return string(out), err
}

// TestCasesAreTheReferences compares with recorded results, so it needs nothing fetched: the same text, or an error where there is one.
func TestCasesAreTheReferences(t *testing.T) {
	if *update {
		out, err := exec.Command("../../../.tools/tokenizers/bin/python", "testdata/cases.py").Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("testdata/results.jsonl", out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []reference
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	recorded, err := os.ReadFile("testdata/results.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	results := bytes.Split(bytes.TrimSpace(recorded), []byte("\n"))
	if len(results) != len(cases) {
		t.Fatalf("%d results of %d cases: run with -update", len(results), len(cases))
	}
	for i, c := range cases {
		var want *string
		if err := json.Unmarshal(results[i], &want); err != nil {
			t.Fatal(err)
		}
		got, err := render(t, c.Template, variables(t, c.Vars), generous)
		switch {
		case c.Unsupported && err == nil:
			t.Errorf("%q: got %q, want an error: it is not supported", c.Template, got)
		case c.Unsupported:
		case want == nil && err == nil:
			t.Errorf("%q: got %q, want an error", c.Template, got)
		case want != nil && err != nil:
			t.Errorf("%q: %v, want %q", c.Template, err, *want)
		case want != nil && got != *want:
			t.Errorf("%q:\ngot  %q\nwant %q", c.Template, got, *want)
		}
	}
}

func TestRenderingsAreBounded(t *testing.T) {
	small := Options{Steps: 10_000, Output: 10_000}
	for _, c := range []struct{ name, source, says string }{
		{"loops", `{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}`, "too many steps"},
		{"a text that doubles", `{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}`, "too"},
		{"a repeated text", `{{ 'x' * 1000000000 }}`, "too much text"},
		{"a repeated list", `{{ [1] * 1000000000 }}`, "too many steps"},
		{"output", `{% for i in range(100) %}{{ 'x' * 1000 }}{% endfor %}`, "too much text"},
		{"replaced", `{{ ('x' * 9000)|replace('x', 'x' * 9000) }}`, "too much text"},
		{"macros", `{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}`, "too deeply"},
		{"lists in lists", `{% set ns = namespace(l=[]) %}{% for i in range(500) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson }}`, "lists in lists"},
	} {
		if _, err := render(t, c.source, nil, small); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want an error that says %q", c.name, err, c.says)
		}
	}
	for _, source := range []string{strings.Repeat("(", 10_000), "{{ " + strings.Repeat("(", 10_000), "{{ " + strings.Repeat("not ", 10_000), strings.Repeat("{% if x %}", 10_000), "{{ " + strings.Repeat("-", 10_000) + "1 }}"} {
		if _, err := Parse(source); err == nil && strings.HasPrefix(source, "{") {
			t.Errorf("%.20s… is accepted", source)
		}
	}
	if _, err := Decode([]byte(strings.Repeat("[", 10_000))); err == nil {
		t.Error("JSON that is nested without end is accepted")
	}
}

// TestRenderingsLeaveTheirVariables renders a template that sets all that it is given.
func TestRenderingsLeaveTheirVariables(t *testing.T) {
	const source = `{% set messages = messages[1:] %}{% for m in messages %}{% set m = 1 %}{% endfor %}{% set d = d.copy() %}{{ messages|length }}`
	vars := variables(t, []byte(`{"messages":[{"a":1},{"a":2}],"d":{"x":[1]}}`))
	before, err := json.Marshal(text(vars["messages"]))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := render(t, source, vars, generous); err != nil || got != "1" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if after, _ := json.Marshal(text(vars["messages"])); !bytes.Equal(before, after) {
		t.Errorf("the messages became %s", after)
	}
}

func TestStrftime(t *testing.T) {
	got, err := render(t, `{{ strftime_now("%a %A %d %-d %b %B %m %-m %y %Y %H:%M:%S %I %p %j %%") }}`, nil, generous)
	if want := "Mon Monday 09 9 Mar March 03 3 26 2026 08:07:06 08 AM 068 %"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// FuzzParse renders any template.
func FuzzParse(f *testing.F) {
	data, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		f.Fatal(err)
	}
	var cases []reference
	if err := json.Unmarshal(data, &cases); err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		f.Add(c.Template)
	}
	vars := variables(f, []byte(`{"messages":[{"role":"user","content":"a"}],"x":{"a":[1,2.5,null,"é"]},"tools":null}`))
	f.Fuzz(func(t *testing.T, source string) {
		_, _ = render(t, source, vars, Options{Steps: 20_000, Output: 20_000})
	})
}

// FuzzDecode reads any JSON: what is accepted is what encoding/json accepts.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e3,"x\n\u00e9\ud83d\ude00",true,false,null]}`, `[]`, `{}`, `"\ud800"`, `01`, `-`, `1e`, "\"\x01\"", `{"a":1,"a":2}`, `1 2`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Decode(data)
		if err != nil {
			return
		}
		if !json.Valid(data) {
			t.Fatalf("%q is accepted", data)
		}
		l := layout{comma: ",", end: ":"}
		out, err := l.appendJSON(nil, v, 0)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(out)
		if err != nil || !equal(v, again) {
			t.Fatalf("%q is written as %q, and read as %v, %v", data, out, again, err)
		}
	})
}
