package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

// TestProtocols writes the tables of docs/protocols.md: which requests are split, from the dialects themselves; what a client gets when
// something fails, from the tables that e2e/matrix checks; and on which engines that was seen, from the suites for real engines.
// Without -update it fails if the page is older.
func TestProtocols(t *testing.T) {
	replaceBetween(t, "docs/protocols.md", "split requests", splitTable(t))
	replaceBetween(t, "docs/protocols.md", "failures", failureTables(t))
	replaceBetween(t, "docs/protocols.md", "pairs", pairTable(t))
	replaceBetween(t, "docs/protocols.md", "suites", suiteTable(t))
}

// matrixFiles are the tables of e2e/matrix, by protocol. Protocols without one have no simulated engine.
var matrixFiles = map[string]string{
	"nixlv2": "matrix.txt", "nixl-push": "push.txt", "moriio": "moriio-write.txt", "sglang": "sglang.txt", "trtllm": "trtllm.txt", "trtllm-generation-first": "trtllm-generation-first.txt",
}

// example is a request with one feature.
type example struct {
	api     pd.API
	feature string
	body    string
	seen    string // the case of the suites for real engines that shows it; "": none does
}

// plainCase and severalCase are cases that the suites for real engines have.
const plainCase, severalCase = "answers", "several answers"

func examples() []example {
	const chat, completion = `"messages":[{"role":"user","content":"x"}],"max_tokens":8`, `"prompt":"x","max_tokens":8`
	return []example{
		{pd.APICompletions, "whole or streamed", completion, plainCase},
		{pd.APIChat, "whole or streamed", chat, plainCase},
		{pd.APIResponses, "whole or streamed", `"input":"x","max_output_tokens":8`, plainCase},
		{pd.APIMessages, "whole or streamed", chat, plainCase},
		{pd.APIGenerate, "whole or streamed", `"token_ids":[1,2],"sampling_params":{"max_tokens":8}`, plainCase},
		{pd.APISGLang, "whole or streamed", `"text":"x","sampling_params":{"max_new_tokens":8}`, plainCase},
		{pd.APICompletions, "n = 2", completion + `,"n":2`, severalCase},
		{pd.APIChat, "n = 2", chat + `,"n":2`, ""},
		{pd.APICompletions, "two prompts", `"prompt":["x","y"],"max_tokens":8`, severalCase},
		{pd.APICompletions, "log probabilities", completion + `,"logprobs":1`, ""},
		{pd.APIChat, "log probabilities", chat + `,"logprobs":true,"top_logprobs":1`, ""},
		{pd.APICompletions, "log probabilities of the prompt", completion + `,"prompt_logprobs":1`, ""},
		{pd.APICompletions, "echo", completion + `,"echo":true`, ""},
		{pd.APIChat, "tools", chat + `,"tools":[{"type":"function","function":{"name":"f"}}]`, ""},
		{pd.APIResponses, "the engine's own tools", `"input":"x","tools":[{"type":"web_search"}]`, ""},
		{pd.APIChat, "a JSON schema", chat + `,"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{}}}`, ""},
		{pd.APIChat, "an image", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}],"max_tokens":8`, ""},
		{pd.APICompletions, "beam search", completion + `,"use_beam_search":true,"n":2`, ""},
		{pd.APICompletions, "max_tokens 0", `"prompt":"x","max_tokens":0`, ""},
	}
}

// splitTable asks each dialect for each example, as the sidecar does.
func splitTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("\n| Call | Request |")
	for _, row := range dialect.Table {
		fmt.Fprintf(&b, " `%s` |", row.Name)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(dialect.Table)) + "\n")
	real, simulated := realCases(t), map[string]string{}
	for name, file := range matrixFiles {
		simulated[name] = matrixHead(t, file)
	}
	for _, e := range examples() {
		fmt.Fprintf(&b, "| %s | %s |", e.api, e.feature)
		for _, row := range dialect.Table {
			d := row.New(dialect.Options{})
			what := splits(t, d, row, e)
			if what != "–" && e.seen != "" {
				switch {
				case slices.Contains(real[row.Name], e.seen):
					what += " ●"
				case e.seen == plainCase && strings.Contains(simulated[row.Name], e.api.String()):
					what += " ○"
				}
			}
			fmt.Fprintf(&b, " %s |", what)
		}
		b.WriteString("\n")
	}
	return b.String() + "\n"
}

// splits says what becomes of a request that is planned remote.
func splits(t *testing.T, d dialect.Dialect, row dialect.Row, e example) string {
	t.Helper()
	own, calls := d.(dialect.Caller)
	if e.api == pd.APISGLang && (!calls || !slices.Contains(own.APIs(), e.api)) || e.api == pd.APIGenerate && row.Engine != dialect.VLLM {
		return "–"
	}
	whole, streamed := fitOf(t, d, e, ""), fitOf(t, d, e, `,"stream":true`)
	if whole != streamed {
		t.Errorf("%s, %s, %s: whole answers are %q, streams %q: give them rows of their own", row.Name, e.api, e.feature, whole, streamed)
	}
	return whole
}

// fitOf is what splits says, with further members in the body.
func fitOf(t *testing.T, d dialect.Dialect, e example, more string) string {
	t.Helper()
	text := []byte(`{"model":"m",` + e.body + more + "}")
	var b body.Body
	scan := &body.Scanner{}
	scan.Reset(request.Base.Members(), body.Limits{}, nil)
	_, err := scan.Write(text)
	if err == nil {
		err = scan.Close()
	}
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	b.Append(text)
	switch fit, choices := dialect.Fit(d, request.Base.Request(e.api, &b, scan)); {
	case fit == request.FitSplit && choices > 1:
		return "split, one for each choice"
	case fit == request.FitSplit:
		return "split"
	case fit == request.FitLocal:
		return "decode alone"
	}
	return "as it is"
}

// matrixText returns a table of e2e/matrix.
func matrixText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "e2e", "matrix", "testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// matrixHead returns the sentence of a table that says which calls it is for; "" if it does not say.
func matrixHead(t *testing.T, file string) string {
	t.Helper()
	_, rest, found := strings.Cut(strings.ReplaceAll(matrixText(t, file), "\n", " "), "streams and whole answers, for ")
	sentence, _, ends := strings.Cut(rest, ", unless")
	if !found || !ends {
		return ""
	}
	return sentence
}

// failureTables shows the tables of e2e/matrix by state: what a client gets if the prefill candidate that fails is the last one.
func failureTables(t *testing.T) string {
	var states []string
	failures := map[string][]string{}             // by state
	outcomes := map[[2]string]map[string]string{} // by state and failure, then by protocol
	var protocols []string
	for _, row := range dialect.Table {
		file, ok := matrixFiles[row.Name]
		if !ok {
			continue
		}
		protocols = append(protocols, row.Name)
		for state, blocks := range matrixStates(t, file) {
			if !slices.Contains(states, state) {
				states = append(states, state)
			}
			for _, block := range blocks {
				for _, failure := range block.failures {
					key := [2]string{state, failure}
					if outcomes[key] == nil {
						outcomes[key] = map[string]string{}
						failures[state] = append(failures[state], failure)
					}
					outcomes[key][row.Name] = block.outcome
				}
			}
		}
	}
	order := []string{"received", "prefilling", "handed off", "before the headers", "before the first event", "streaming"}
	var b strings.Builder
	for _, state := range order {
		if !slices.Contains(states, state) {
			t.Fatalf("no table has the state %s", state)
		}
		fmt.Fprintf(&b, "\n### State: %s\n\n| Failure |", state)
		for _, p := range protocols {
			fmt.Fprintf(&b, " `%s` |", p)
		}
		b.WriteString("\n|---|" + strings.Repeat("---|", len(protocols)) + "\n")
		slices.Sort(failures[state])
		for _, failure := range failures[state] {
			fmt.Fprintf(&b, "| %s |", failure)
			for _, p := range protocols {
				fmt.Fprintf(&b, " %s |", outcomes[[2]string{state, failure}][p])
			}
			b.WriteString("\n")
		}
	}
	return b.String() + "\n"
}

// matrixBlock is failures with one outcome.
type matrixBlock struct {
	failures []string
	outcome  string
}

// matrixStates reads a table of e2e/matrix.
func matrixStates(t *testing.T, file string) map[string][]matrixBlock {
	t.Helper()
	states := map[string][]matrixBlock{}
	for _, section := range strings.Split(matrixText(t, file), "\n== ")[1:] {
		state, text, ok := strings.Cut(section, " ==\n")
		if !ok {
			t.Fatalf("%s: a state without an end: %.40s", file, section)
		}
		for block := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
			var m matrixBlock
			var lines []string
			for line := range strings.SplitSeq(block, "\n") {
				if outcome, indented := strings.CutPrefix(line, "    "); indented {
					if last, is := strings.CutPrefix(outcome, "last candidate:"); is {
						lines = []string{strings.TrimSpace(last)}
						break
					}
					if !strings.HasPrefix(outcome, "another candidate:") {
						lines = append(lines, outcome)
					}
					continue
				}
				failure, _, _ := strings.Cut(line, "   [")
				m.failures = append(m.failures, failure)
			}
			m.outcome = strings.ReplaceAll(strings.Join(lines, "; "), "|", "\\|")
			if len(m.failures) == 0 || m.outcome == "" {
				t.Fatalf("%s, %s: not read: %s", file, state, block)
			}
			states[state] = append(states[state], m)
		}
	}
	return states
}

// pairTable shows what sidecar's TestEveryPair saw: the settings as rows, the engines as columns.
func pairTable(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "sidecar", "testdata", "pairs.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var engines, settings []string
	cells := map[[2]string]string{}
	for _, section := range strings.Split("\n"+string(text), "\n== ")[1:] {
		engine, lines, _ := strings.Cut(section, " ==\n")
		engines = append(engines, engine)
		for line := range strings.Lines(lines) {
			setting, seen, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			planned, rest, cuts := strings.Cut(seen, "; ")
			if !ok || !cuts {
				t.Fatalf("pairs.txt: not read: %s", line)
			}
			_, found, _ := strings.Cut(rest, ", ")
			switch found = strings.TrimSuffix(found, " is found out"); {
			case found != "":
				planned += " (" + found + ")"
			case slices.Contains(ownSettings[engine], setting):
				planned = "**" + planned + "**"
			}
			if !slices.Contains(settings, setting) {
				settings = append(settings, setting)
			}
			cells[[2]string{setting, engine}] = planned
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n| `--kv-connector` | %s |\n|---|%s\n", strings.Join(engines, " | "), strings.Repeat("---|", len(engines)))
	for _, setting := range settings {
		fmt.Fprintf(&b, "| `%s` |", strings.ReplaceAll(setting, " ", " --"))
		for _, engine := range engines {
			fmt.Fprintf(&b, " %s |", cells[[2]string{setting, engine}])
		}
		b.WriteString("\n")
	}
	return b.String() + "\n"
}

// ownSettings are the settings for the engines of pairs.txt.
var ownSettings = map[string][]string{
	"vLLM, NixlConnector": {"nixlv2"}, "vLLM, NixlPushConnector": {"nixl-push"}, "vLLM, MoRIIOConnector, read_mode": {"moriio"},
	"vLLM, MoRIIOConnector": {"moriio moriio-write-mode", "moriio moriio-write-mode moriio-parallel-dispatch"},
	"SGLang":                {"sglang"}, "TensorRT-LLM": {"trtllm", "trtllm-generation-first"},
}

// suiteTable lists what was seen on which engines.
func suiteTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("\n| Protocol | Engine | Simulated engines | Real engines: cases |\n|---|---|---|---|\n")
	real := realCases(t)
	for _, row := range dialect.Table {
		simulated := "none"
		if file, ok := matrixFiles[row.Name]; ok {
			simulated = "[" + file + "](../e2e/matrix/testdata/" + file + ")"
		}
		cases := strings.Join(real[row.Name], ", ")
		if cases == "" {
			cases = "none"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", row.Name, row.Engine, simulated, cases)
	}
	return b.String() + "\n"
}

// realCases returns the names of the cases that run on real engines, by protocol: those of e2e/connectors, e2e/serving (vLLM with NIXL)
// and e2e/sglang.
func realCases(t *testing.T) map[string][]string {
	t.Helper()
	real := map[string][]string{}
	add := func(protocol string, names []string) {
		for _, name := range names {
			if !slices.Contains(real[protocol], name) {
				real[protocol] = append(real[protocol], name)
			}
		}
	}
	add("nixlv2", firstTexts(t, listIn(t, "e2e/serving/vllm_test.go", "realCases")))
	add("sglang", firstTexts(t, listIn(t, "e2e/sglang/suite_test.go", "cases")))
	for _, element := range listIn(t, "e2e/connectors/suite_test.go", "suites").Elts {
		var protocol string
		suite := element.(*ast.CompositeLit)
		ast.Inspect(suite.Elts[2], func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if flag, err := strconv.Unquote(literal.Value); err == nil {
					if value, is := strings.CutPrefix(flag, "--kv-connector="); is {
						protocol = value
					}
				}
			}
			return true
		})
		if _, known := dialect.Find(protocol); !known {
			t.Fatalf("a suite of e2e/connectors has the protocol %q", protocol)
		}
		add(protocol, firstTexts(t, suite.Elts[3].(*ast.CompositeLit)))
	}
	return real
}

// listIn returns the list that a variable of a file is initialized with.
func listIn(t *testing.T, file, variable string) (list *ast.CompositeLit) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, filepath.FromSlash(file)), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == 1 && spec.Names[0].Name == variable && len(spec.Values) == 1 {
			list, _ = spec.Values[0].(*ast.CompositeLit)
		}
		return list == nil
	})
	if list == nil {
		t.Fatalf("%s has no list %s", file, variable)
	}
	return list
}

// firstTexts returns the first field of each element of a list, a text.
func firstTexts(t *testing.T, list *ast.CompositeLit) (texts []string) {
	t.Helper()
	for _, element := range list.Elts {
		fields := element.(*ast.CompositeLit).Elts
		literal, ok := fields[0].(*ast.BasicLit)
		if !ok {
			t.Fatalf("an element does not begin with a text: %v", fields[0])
		}
		text, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	return texts
}
