package docs_test

import (
	"cmp"
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
// something fails, from the tables that e2e/matrix checks; and on which engines that is tested, from the rows of e2e/matrix and from the
// suites for real engines. Without -update it fails if the page is older.
func TestProtocols(t *testing.T) {
	replaceBetween(t, "docs/protocols.md", "split requests", splitTable(t))
	replaceBetween(t, "docs/protocols.md", "failures", failureTables(t))
	replaceBetween(t, "docs/protocols.md", "pairs", pairTable(t))
	replaceBetween(t, "docs/protocols.md", "simulated", simulatedTable(t))
	replaceBetween(t, "docs/protocols.md", "real", realTable(t))
	replaceBetween(t, "docs/protocols.md", "suites", suiteTable(t))
}

// matrixTables are the tables of e2e/matrix. Protocols without one have no simulated engine there.
var matrixTables = []struct {
	protocol string
	mode     string // "": the protocol has one
	name     string // in rows.txt
	file     string
}{
	{"nixlv2", "", "nixlv2", "matrix.txt"}, {"nixl-push", "", "push", "push.txt"}, {"sglang", "", "sglang", "sglang.txt"},
	{"moriio", "read", "moriio-read", "moriio-read.txt"}, {"moriio", "write", "moriio-write", "moriio-write.txt"},
	{"trtllm", "", "trtllm", "trtllm.txt"}, {"trtllm-generation-first", "", "trtllm-generation-first", "trtllm-generation-first.txt"},
}

// titled returns the name of a protocol with its mode, if it has several.
func titled(protocol, mode string) string {
	if mode == "" {
		return "`" + protocol + "`"
	}
	return "`" + protocol + "` (" + mode + ")"
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
	real, simulated := realCases(t), readMatrixRows(t)
	for _, e := range examples() {
		fmt.Fprintf(&b, "| %s | %s |", e.api, e.feature)
		for _, row := range dialect.Table {
			d := row.New(dialect.Options{})
			what := splits(t, d, row, e)
			if what != "–" && e.seen != "" {
				switch {
				case slices.Contains(real[row.Name], e.seen):
					what += " ●"
				case e.seen == plainCase && simulated.have(row.Name, e.api):
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

// matrixRows is how many rows of e2e/matrix there are, by protocol, API, form of answer and state of the request.
type matrixRows map[[4]string]int

func readMatrixRows(t *testing.T) matrixRows {
	t.Helper()
	rows := matrixRows{}
	for line := range strings.Lines(matrixText(t, "rows.txt")) {
		key, count, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		fields := strings.Split(key, ", ")
		n, err := strconv.Atoi(count)
		if !ok || err != nil || len(fields) != 4 {
			t.Fatalf("rows.txt: not read: %s", line)
		}
		rows[[4]string(fields)] = n
	}
	return rows
}

// forms are the forms of an answer, as rows.txt names them.
var forms = []string{"whole", "stream"}

// have reports whether there are rows for an API, in each mode of a protocol.
func (r matrixRows) have(protocol string, api pd.API) bool {
	modes := 0
	for _, table := range matrixTables {
		if table.protocol != protocol {
			continue
		}
		modes++
		if r.of(table.name, api, forms[0])+r.of(table.name, api, forms[1]) == 0 {
			return false
		}
	}
	return modes > 0
}

// of counts the rows of all states.
func (r matrixRows) of(name string, api pd.API, form string) (n int) {
	for _, state := range states {
		n += r[[4]string{name, api.String(), form, state}]
	}
	return n
}

// states are those of a request in e2e/matrix, in their order.
var states = []string{"received", "prefilling", "handed off", "before the headers", "before the first event", "streaming"}

// simulatedTable shows how many failures are run with each protocol, API and form of answer, by the state of the request.
func simulatedTable(t *testing.T) string {
	t.Helper()
	rows := readMatrixRows(t)
	var b strings.Builder
	b.WriteString("\n| Protocol | Call | Answer | " + strings.Join(states, " | ") + " |\n|---|---|---|" + strings.Repeat("---|", len(states)) + "\n")
	for _, table := range matrixTables {
		lines := 0
		for _, api := range pd.GenerateAPIs() {
			for _, form := range forms {
				if rows.of(table.name, api, form) == 0 {
					continue
				}
				lines++
				fmt.Fprintf(&b, "| %s | %s | %s |", titled(table.protocol, table.mode), api, form)
				for _, state := range states {
					if n := rows[[4]string{table.name, api.String(), form, state}]; n > 0 {
						fmt.Fprintf(&b, " %d ○ |", n)
					} else {
						b.WriteString(" |")
					}
				}
				b.WriteString("\n")
			}
		}
		if lines == 0 {
			t.Errorf("rows.txt has no row of %s", table.name)
		}
	}
	return b.String() + "\n"
}

// realTable shows which cases of the suites that several protocols share run on whose real engines.
func realTable(t *testing.T) string {
	t.Helper()
	real := realCases(t)
	var cases []string
	sharing := map[string]int{}
	for _, row := range dialect.Table {
		for _, name := range real[row.Name] {
			if sharing[name]++; sharing[name] == 2 {
				cases = append(cases, name)
			}
		}
	}
	slices.Sort(cases)
	var b strings.Builder
	b.WriteString("\n| Case |")
	for _, row := range dialect.Table {
		fmt.Fprintf(&b, " `%s` |", row.Name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(dialect.Table)) + "\n")
	for _, name := range cases {
		fmt.Fprintf(&b, "| %s |", name)
		for _, row := range dialect.Table {
			if slices.Contains(real[row.Name], name) {
				b.WriteString(" ● |")
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	return b.String() + "\n"
}

// failureTables shows the tables of e2e/matrix by state: what a client gets if the prefill candidate that fails is the last one.
func failureTables(t *testing.T) string {
	failures := map[string][]string{}             // by state
	outcomes := map[[2]string]map[string]string{} // by state and failure, then by protocol
	var protocols []string
	for _, table := range matrixTables {
		protocol := titled(table.protocol, table.mode)
		protocols = append(protocols, protocol)
		for state, blocks := range matrixStates(t, table.file) {
			for _, block := range blocks {
				for _, failure := range block.failures {
					key := [2]string{state, failure}
					if outcomes[key] == nil {
						outcomes[key] = map[string]string{}
						failures[state] = append(failures[state], failure)
					}
					outcomes[key][protocol] = block.outcome
				}
			}
		}
	}
	var b strings.Builder
	for _, state := range states {
		if len(failures[state]) == 0 {
			t.Fatalf("no table has the state %s", state)
		}
		fmt.Fprintf(&b, "\n### State: %s\n\n| Failure |", state)
		for _, p := range protocols {
			fmt.Fprintf(&b, " %s |", p)
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
		var files []string
		for _, table := range matrixTables {
			if table.protocol == row.Name {
				files = append(files, "["+table.file+"](../e2e/matrix/testdata/"+table.file+")")
			}
		}
		simulated := cmp.Or(strings.Join(files, ", "), "none")
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
