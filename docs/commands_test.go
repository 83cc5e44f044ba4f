package docs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/pool"
)

// command is one command of a shell block.
type command struct {
	page  string
	line  int
	words []string
}

func (c command) String() string {
	return fmt.Sprintf("%s, block at line %d: %s", c.page, c.line, strings.Join(c.words, " "))
}

// checks says how a command of the pages is checked, by its first word. A command that is not here fails the test: a page
// must not show what no test tries.
var checks = map[string]func(t *testing.T, dir string, c command){
	"make":            checkMake,
	"bin/batch":       checkProgram,
	"bin/epp":         checkProgram,
	"bin/sidecar":     checkProgram,
	"bin/nixl/keeper": checkProgram,
	"bin/tandem":      checkTandem,
	"tandem":          checkTandem,
	"helm":            checkHelm,
	"docker":          checkDocker,
	"go":              checkGo,
	"vllm":            checkVLLM,
	"python3":         checkNothing, // SGLang, whose flags make test-sglang uses
	"trtllm-serve":    checkNothing, // it runs on GPUs only
	"export":          checkNothing,
	"curl":            checkNothing, // a server of the reader's
	"kubectl":         checkNothing, // a cluster of the reader's
	"envoy":           checkNothing, // its configuration is written by the line above it
	"git":             checkNothing,
	".ci/notes":       checkNothing, // e2e/release runs it
	"sha256sum":       checkNothing, // files of a release
	"xargs":           checkNothing, // what it runs is not ours
}

// TestCommands tries every command in the shell blocks of all pages, as far as it can be tried on this machine alone: our
// programs check their flags and files, Helm renders, make and go test know what is asked of them.
func TestCommands(t *testing.T) {
	for _, p := range pages(t) {
		t.Run(p.name, func(t *testing.T) {
			dir := t.TempDir()
			writeExampleFiles(t, dir)
			for _, c := range p.commands(t) {
				check := checks[c.words[0]]
				if check == nil {
					t.Errorf("%s: no test tries this command", c)
					continue
				}
				check(t, dir, c)
			}
		})
	}
}

// writeExampleFiles writes the files that commands of the pages name: the endpoints file of the quick start, and the
// default configuration.
func writeExampleFiles(t *testing.T, dir string) {
	t.Helper()
	files := map[string]string{"config.yaml": string(config.Default()), "request.json": `{"model":"tiny","prompt":"Hello"}`,
		"capture.key": strings.Repeat("0123456789abcdef", 4), "my-values.yaml": "model: {name: acme/model}\nimages: {registry: registry.example.com/tandem}\n"}
	for _, c := range pageNamed(t, "docs/quickstart.md").codes {
		if c.language == "yaml" && strings.HasPrefix(c.text, "endpoints:") {
			files["endpoints.yaml"] = c.text
		}
	}
	for _, c := range pageNamed(t, "docs/replay.md").codes {
		if name, ok := strings.CutPrefix(strings.SplitN(c.text, "\n", 2)[0], "# "); ok && strings.HasSuffix(name, ".yaml") {
			files[name] = c.text
		}
	}
	trace, err := os.ReadFile(filepath.Join(root, "replay", "testdata", "conversation.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	files["conversation_trace.jsonl"] = string(trace)
	for name, from := range map[string]string{"capture.jsonl": "capture.txt", "records.jsonl": "measured.txt", "fitted.csv": "measured.txt"} {
		script, err := txtar.ParseFile(filepath.Join(root, "cmd", "tandem", "replay", "testdata", from))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range script.Files {
			if f.Name == name {
				files[name] = string(f.Data)
			}
		}
	}
	elastic, err := os.ReadFile(filepath.Join(root, "cmd", "tandem", "replay", "elastic.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	files["elastic.yaml"] = string(elastic)
	files["my.csv"] = strings.Replace(files["fitted.csv"], "kv-tokens=10000", "kv-tokens=1000000", 1)
	files["local.yaml"] = strings.Replace(string(config.Default()), "nonCachedTokens: 2048", "nonCachedTokens: 1000000", 1)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// commands returns the commands of a page's shell blocks. What follows a pipe or a redirection is not part of them.
func (p page) commands(t *testing.T) (all []command) {
	t.Helper()
	for _, c := range p.codes {
		if c.language != "sh" || p.isRun(c) {
			continue
		}
		syntax := exec.Command("bash", "-n")
		syntax.Stdin = strings.NewReader(c.text)
		if out, err := syntax.CombinedOutput(); err != nil {
			t.Errorf("%s, block at line %d: %v\n%s", p.name, c.line, err, out)
		}
		for line := range strings.Lines(strings.ReplaceAll(c.text, "\\\n", " ")) {
			words := shellWords(line)
			for len(words) > 0 && assignment.MatchString(words[0]) {
				words = words[1:]
			}
			if len(words) > 0 {
				all = append(all, command{p.name, c.line, words})
			}
		}
	}
	return all
}

var assignment = regexp.MustCompile(`^[A-Z_]+=`)

// shellWords splits a line as a shell does, up to a comment, a pipe, a redirection or an ampersand. It knows both quotes,
// and leaves variables as they are.
func shellWords(line string) (words []string) {
	var word strings.Builder
	var quote rune
	inWord := false
	end := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == ' ' || r == '\t' || r == '\n':
			end()
		case strings.ContainsRune("#|>&;", r) && (!inWord || r != '#'):
			end()
			return words
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	end()
	return words
}

func TestShellWords(t *testing.T) {
	for line, want := range map[string][]string{
		"make demo    # a stack":                           {"make", "demo"},
		"bin/epp --endpoints-file e.yaml &":                {"bin/epp", "--endpoints-file", "e.yaml"},
		`curl -d '{"model":"'$MODEL'"}' http://x#y | grep`: {"curl", "-d", `{"model":"$MODEL"}`, "http://x#y"},
		"bin/tandem envoy-config > envoy.yaml":             {"bin/tandem", "envoy-config"},
		"":                                                 nil,
		"A=1 b '' \"c d\"":                                 {"A=1", "b", "", "c d"},
	} {
		if got := shellWords(line); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

func checkNothing(*testing.T, string, command) {}

// checkProgram has a program check its flags.
func checkProgram(t *testing.T, dir string, c command) {
	t.Helper()
	args := slices.DeleteFunc(slices.Clone(c.words[1:]), func(w string) bool { return w == "--probe" })
	run(t, dir, program(t, filepath.Base(c.words[0])), append(args, "--check")...)
}

// checkTandem runs the commands that need no server, and has the others check their flags.
func checkTandem(t *testing.T, dir string, c command) {
	t.Helper()
	args := c.words[1:]
	if len(args) > 0 && args[0] != "check" && args[0] != "envoy-config" && args[0] != "replay" {
		args = append(slices.Clone(args), "--check")
	}
	if slices.Contains(args, "--check") { // operands follow flags
		args = append([]string{args[0], "--check"}, args[1:len(args)-1]...)
	}
	if slices.Contains(args, "--fit") { // an engine of the reader's
		out, err := exec.Command(program(t, "tandem"), args...).CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "tandem: fitting http://") {
			t.Errorf("%s: %v\n%s", c, err, out)
		}
		return
	}
	run(t, dir, program(t, "tandem"), args...)
}

var variableOfMake = regexp.MustCompile(`(?m)^([A-Z_]+) [?:]?=`)

// checkMake checks that the targets and the variables exist.
func checkMake(t *testing.T, _ string, c command) {
	t.Helper()
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	text := "\n" + string(makefile)
	for _, word := range c.words[1:] {
		name, _, isVariable := strings.Cut(word, "=")
		isKnown := strings.Contains(text, "\n"+word+":")
		if isVariable {
			isKnown = slices.ContainsFunc(variableOfMake.FindAllStringSubmatch(text, -1), func(m []string) bool { return m[1] == name })
		}
		if !isKnown {
			t.Errorf("%s: the Makefile has no %s", c, word)
		}
	}
}

// checkHelm renders what would be installed.
func checkHelm(t *testing.T, dir string, c command) {
	t.Helper()
	if c.words[1] != "install" && c.words[1] != "upgrade" && c.words[1] != "template" {
		return // a release of the reader's
	}
	helm, err := filepath.Abs(filepath.Join(root, ".tools", "helm"))
	if _, missing := os.Stat(helm); err != nil || missing != nil {
		if os.Getenv("CI") == "true" {
			t.Errorf("%s: Helm is missing: make .tools/helm fetches it", c)
		}
		t.Logf("%s: not tried, Helm is missing: make .tools/helm fetches it", c)
		return
	}
	args := []string{"template"}
	for _, word := range c.words[2:] {
		if word == "--install" {
			continue // of helm upgrade only
		}
		if strings.HasPrefix(word, "charts/") {
			word = filepath.Join(filepath.Dir(filepath.Dir(helm)), word)
		}
		args = append(args, word)
	}
	run(t, dir, helm, append(args, "--kube-version", "1.34.0")...)
}

// checkDocker checks that the target and the build arguments exist.
func checkDocker(t *testing.T, _ string, c command) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	for i, word := range c.words {
		switch word {
		case "--target":
			if !strings.Contains(string(text), " AS "+c.words[i+1]+"\n") {
				t.Errorf("%s: the Dockerfile has no target %s", c, c.words[i+1])
			}
		case "--build-arg":
			name, _, _ := strings.Cut(c.words[i+1], "=")
			if !strings.Contains(string(text), "ARG "+name) {
				t.Errorf("%s: the Dockerfile has no argument %s", c, name)
			}
		}
	}
}

// checkGo checks that packages and tests exist.
func checkGo(t *testing.T, _ string, c command) {
	t.Helper()
	var folders []string
	module := "" // that of a module inside the repository: go -C DIR
	for i, word := range c.words {
		if word == "-C" {
			module = c.words[i+1]
		}
		if strings.HasPrefix(word, "./") && !strings.HasSuffix(word, "...") {
			folder := filepath.Join(module, word)
			folders = append(folders, folder)
			if _, err := os.Stat(filepath.Join(root, folder)); err != nil {
				t.Errorf("%s: %v", c, err)
			}
		}
		if word == "-run" && !isTestIn(t, folders, c.words[i+1]) && !isTestIn(t, c.words[i+2:], c.words[i+1]) {
			t.Errorf("%s: no test is called %s", c, c.words[i+1])
		}
	}
}

// isTestIn reports whether a folder has a test whose name begins with a pattern's text.
func isTestIn(t *testing.T, folders []string, pattern string) bool {
	t.Helper()
	name := strings.Trim(pattern, "^$")
	if name == "" {
		return true
	}
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "\nfunc "+name) {
				return true
			}
		}
	}
	return false
}

// checkVLLM checks that the JSON in an engine's command line can be read.
func checkVLLM(t *testing.T, _ string, c command) {
	t.Helper()
	for i, word := range c.words {
		if word == "--kv-transfer-config" && !json.Valid([]byte(c.words[i+1])) {
			t.Errorf("%s: %s is not JSON", c, c.words[i+1])
		}
	}
}

// TestYAML reads the YAML blocks of all pages with what reads them in production.
func TestYAML(t *testing.T) {
	for _, p := range pages(t) {
		for _, c := range p.codes {
			if c.language != "yaml" || p.isRun(c) {
				continue
			}
			file := filepath.Join(t.TempDir(), "block.yaml")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			switch {
			case strings.HasPrefix(c.text, "endpoints:"):
				if found, err := (&pool.File{Path: file}).Load(); err != nil || len(found) == 0 {
					t.Errorf("%s, line %d: %d endpoints, %v", p.name, c.line, len(found), err)
				}
			case strings.Contains(c.text, "kind: EndpointPickerConfig"):
				run(t, "", program(t, "tandem"), "check", file)
			case strings.HasPrefix(c.text, "# queues.yaml\n"):
				run(t, "", program(t, "batch"), "--check", "--data=data", "--upstream=http://127.0.0.1:1", "--queues-file="+file)
			case strings.HasPrefix(c.text, "# classes.yaml\n"):
				run(t, "", program(t, "tandem"), "replay", "--requests", "5", "--classes", file)
			case strings.HasPrefix(c.text, "# pool.yaml\n"), strings.HasPrefix(c.text, "# adapters.yaml\n"), strings.HasPrefix(c.text, "# gpus.yaml\n"):
				run(t, "", program(t, "tandem"), "replay", "--requests", "5", "--pool", "2P+2D", "--pool-file", file)
			case p.name == "charts/tandem/README.md", strings.HasPrefix(c.text, "tls:\n"): // values of the chart
				dir := t.TempDir()
				writeExampleFiles(t, dir)
				checkHelm(t, dir, command{p.name, c.line, []string{"helm", "template", "demo", "charts/tandem", "-f", "my-values.yaml", "-f", file}})
			default:
				t.Errorf("%s, line %d: no test reads this block", p.name, c.line)
			}
		}
	}
}

// languages are those of blocks that some test of this package looks at, or e2e/batch (python), or that nothing runs: plain output and queries.
var languages = []string{"", "sh", "console", "yaml", "go", "promql", "json", "diff", "python"}

// TestLanguages finds blocks that no test knows what to do with.
func TestLanguages(t *testing.T) {
	for _, p := range pages(t) {
		for _, c := range p.codes {
			if !slices.Contains(languages, c.language) {
				t.Errorf("%s, line %d: no test knows blocks of %s", p.name, c.line, c.language)
			}
		}
	}
}
