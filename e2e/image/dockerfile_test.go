package image_test

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// instruction is one of a Dockerfile, on one line, with its options apart.
type instruction struct {
	word, args string
	flags      map[string]string // --from=build
	line       int
}

// stage is what stands between two FROMs.
type stage struct {
	name, from string
	steps      []instruction
}

// dockerfile is as much of one as ours needs: no heredocs, no escapes but that of the line's end, no ONBUILD.
type dockerfile struct {
	args   map[string]string // before the first FROM
	stages []*stage
}

// repository is the root of the repository, which is the build context.
const repository = "../.."

// user is the numeric user that the images run as.
const user = "65532"

// TestDockerfile lints the Dockerfile: hadolint for the few rules that matter here.
func TestDockerfile(t *testing.T) {
	for _, complaint := range lint(readDockerfile(t)) {
		t.Error(complaint)
	}
}

func TestDockerfileLint(t *testing.T) {
	const good = `
ARG V=1.2.3
FROM golang:${V} AS build
RUN make \
      all
FROM scratch AS one
USER 65532:65532
LABEL org.opencontainers.image.title="one" org.opencontainers.image.description="first" \
      org.opencontainers.image.licenses="Apache-2.0" org.opencontainers.image.source="https://example.org"
COPY --from=build /out/one /one
EXPOSE 80
ENTRYPOINT ["/one"]
`
	for _, test := range []struct{ name, old, new, want string }{
		{"good", "", "", ""},
		{"moving tag", "ARG V=1.2.3", "ARG V=1.2", "line 3: golang:1.2 moves"},
		{"no tag", "golang:${V}", "golang", "line 3: golang moves"},
		{"digest", "golang:${V}", "golang@sha256:" + strings.Repeat("0", 64), ""},
		{"ADD", "COPY --from", "ADD --from", "line 10: ADD fetches"},
		{"user by name", "USER 65532:65532", "USER daemon", "one: runs as daemon"},
		{"root", "USER 65532:65532\n", "", "one: runs as root"},
		{"secret", "RUN make", "ARG HF_TOKEN\nRUN make", "line 4: ARG HF_TOKEN stays"},
		{"secret in the environment", "RUN make", "ENV API_KEY=a\nRUN make", "line 4: ENV API_KEY stays"},
		{"no title", `org.opencontainers.image.title="one"`, "", "one: has no label org.opencontainers.image.title"},
		{"shell", `ENTRYPOINT ["/one"]`, "ENTRYPOINT /one", "one: its ENTRYPOINT needs a shell"},
		{"no entry point", `ENTRYPOINT ["/one"]`, "", "one: has no ENTRYPOINT"},
		{"unknown stage", "--from=build", "--from=builder", "line 10: there is no stage builder"},
		{"package without its sum", "RUN make", "RUN python3 -m pip download --no-deps a==1.2.3", "line 4: pip takes what it is given"},
		{"package with its sum", "RUN make", "RUN python3 -m pip download --require-hashes --requirement pins.txt", ""},
		{"commands at run time", "EXPOSE 80", "RUN true", "line 11: RUN in an image without a shell"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, err := parseDockerfile(strings.Replace(good, test.old, test.new, 1))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(lint(d), "\n"); !strings.HasPrefix(got, test.want) || test.want == "" && got != "" {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

var (
	pinned     = regexp.MustCompile(`:v?\d+\.\d+\.\d+([.-][\w.-]+)?$|@sha256:[0-9a-f]{64}$`)
	secretive  = regexp.MustCompile(`(?i)(secret|token|passw|key|credential)`)
	entryPoint = regexp.MustCompile(`^\["(/[^"]+)"\]$`)
)

// lint returns what is wrong with a Dockerfile.
func lint(d *dockerfile) (complaints []string) {
	complain := func(format string, args ...any) { complaints = append(complaints, fmt.Sprintf(format, args...)) }
	for _, s := range d.stages {
		if from := d.image(s.from); d.stage(s.from) == nil && from != "scratch" && !pinned.MatchString(from) {
			complain("line %d: %s moves: name a whole version, or a digest", s.steps[0].line, from)
		}
		for _, i := range s.steps {
			name, _, _ := strings.Cut(i.args, "=")
			switch {
			case i.word == "ADD":
				complain("line %d: ADD fetches and unpacks: use COPY", i.line)
			case (i.word == "ARG" || i.word == "ENV") && secretive.MatchString(name):
				complain("line %d: %s %s stays in the image's history", i.line, i.word, name)
			case i.word == "RUN" && strings.Contains(i.args, "pip ") && !strings.Contains(i.args, "--require-hashes"):
				complain("line %d: pip takes what it is given: use --require-hashes", i.line)
			case i.word == "RUN" && d.root(s.name).from == "scratch":
				complain("line %d: RUN in an image without a shell", i.line)
			}
			if from := i.flags["from"]; from != "" && d.stage(from) == nil {
				complain("line %d: there is no stage %s", i.line, from)
			}
		}
	}
	for _, target := range d.targets() {
		for _, c := range lintImage(d.flat(target)) {
			complain("%s: %s", target, c)
		}
	}
	return complaints
}

// lintImage looks at what an image says of itself.
func lintImage(steps []instruction) (complaints []string) {
	who, labels, entry := "root", "", ""
	for _, i := range steps {
		switch i.word {
		case "USER":
			who = i.args
		case "LABEL":
			labels += " " + i.args
		case "ENTRYPOINT":
			entry = i.args
		}
	}
	if who != user+":"+user {
		complaints = append(complaints, "runs as "+who+", want "+user+":"+user+", which runAsNonRoot can check")
	}
	for _, l := range []string{"title", "description", "licenses", "source"} {
		if !strings.Contains(labels, " org.opencontainers.image."+l+"=") {
			complaints = append(complaints, "has no label org.opencontainers.image."+l)
		}
	}
	switch {
	case entry == "":
		complaints = append(complaints, "has no ENTRYPOINT")
	case !entryPoint.MatchString(entry):
		complaints = append(complaints, "its ENTRYPOINT needs a shell, or has arguments: "+entry)
	}
	return complaints
}

func readDockerfile(t *testing.T) *dockerfile {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := parseDockerfile(string(data))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func parseDockerfile(text string) (*dockerfile, error) {
	d := &dockerfile{args: map[string]string{}}
	for number, line := range logicalLines(text) {
		i, err := parseInstruction(number, line)
		switch {
		case err != nil:
			return nil, err
		case i.word == "FROM":
			from, name, _ := strings.Cut(i.args, " AS ")
			d.stages = append(d.stages, &stage{name: strings.TrimSpace(name), from: strings.TrimSpace(from)})
		case len(d.stages) == 0 && i.word == "ARG":
			name, value, _ := strings.Cut(i.args, "=")
			d.args[name] = value
		case len(d.stages) == 0:
			return nil, fmt.Errorf("line %d: %s before the first FROM", i.line, i.word)
		}
		if len(d.stages) > 0 {
			s := d.stages[len(d.stages)-1]
			s.steps = append(s.steps, i)
		}
	}
	return d, nil
}

// logicalLines joins lines that end in a backslash, and leaves out comments. The numbers are those of their beginnings.
func logicalLines(text string) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		begin, joined := 0, ""
		for n, line := range strings.Split(text, "\n") {
			line = strings.TrimSpace(line)
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			if joined == "" {
				begin = n + 1
			}
			more, goesOn := strings.CutSuffix(line, "\\")
			joined += more
			if goesOn {
				continue
			}
			if !yield(begin, strings.TrimSpace(joined)) {
				return
			}
			joined = ""
		}
	}
}

func parseInstruction(number int, line string) (instruction, error) {
	word, args, _ := strings.Cut(line, " ")
	i := instruction{word: word, args: strings.TrimSpace(args), flags: map[string]string{}, line: number}
	if word != strings.ToUpper(word) || i.args == "" {
		return i, fmt.Errorf("line %d: no instruction: %s", number, line)
	}
	for strings.HasPrefix(i.args, "--") {
		flag, rest, _ := strings.Cut(i.args, " ")
		name, value, _ := strings.Cut(flag[len("--"):], "=")
		i.flags[name], i.args = value, strings.TrimSpace(rest)
	}
	return i, nil
}

// image puts the values of ARGs into a FROM.
func (d *dockerfile) image(from string) string {
	return os.Expand(from, func(name string) string { return d.args[name] })
}

func (d *dockerfile) stage(name string) *stage {
	for _, s := range d.stages {
		if s.name == name {
			return s
		}
	}
	return nil
}

// root returns the stage that a stage is made on in the end.
func (d *dockerfile) root(name string) *stage {
	s := d.stage(name)
	for d.stage(s.from) != nil {
		s = d.stage(s.from)
	}
	return s
}

// targets returns the stages to make images of: those that no other is made on or copies from.
func (d *dockerfile) targets() (names []string) {
	used := map[string]bool{}
	for _, s := range d.stages {
		used[s.from] = true
		for _, i := range s.steps {
			used[i.flags["from"]] = true
		}
	}
	for _, s := range d.stages {
		if !used[s.name] {
			names = append(names, s.name)
		}
	}
	return names
}

// flat returns all instructions that an image comes from, those of the stages below first.
func (d *dockerfile) flat(name string) []instruction {
	s := d.stage(name)
	if d.stage(s.from) == nil {
		return s.steps
	}
	return slices.Concat(d.flat(s.from), s.steps)
}

// dockerignore reports whether a file of the repository stays out of the build context: the last pattern that fits it, or a
// folder above it, decides.
func dockerignore(t *testing.T) func(file string) bool {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	return ignorer(string(data))
}

func ignorer(text string) func(file string) bool {
	type pattern struct {
		fits *regexp.Regexp
		out  bool
	}
	var patterns []pattern
	for _, line := range logicalLines(text) {
		p, in := strings.CutPrefix(line, "!")
		p = regexp.QuoteMeta(strings.Trim(path.Clean(p), "/"))
		p = strings.NewReplacer(`\*\*/`, `(.*/)?`, `\*\*`, `.*`, `\*`, `[^/]*`, `\?`, `[^/]`).Replace(p)
		patterns = append(patterns, pattern{regexp.MustCompile("^" + p + "(/.*)?$"), !in})
	}
	return func(file string) (out bool) {
		for _, p := range patterns {
			if p.fits.MatchString(file) {
				out = p.out
			}
		}
		return out
	}
}

func TestDockerignore(t *testing.T) {
	out := ignorer("# nothing but\n**\n!cmd\n!go.mod\n**/testdata\n**/*_test.go\n/cmd/x?\n")
	for file, want := range map[string]bool{
		"README.md": true, "go.mod": false, "cmd/epp/main.go": false, "cmd/epp/main_test.go": true, "cmd/testdata/a": true,
		"cmd/a/testdata/b/c": true, "cmdline/a": true, "cmd/xy/a": true, "cmd/x/a": false, "sub/go.mod": true,
	} {
		if out(file) != want {
			t.Errorf("%s stays out: %t, want %t", file, !want, want)
		}
	}
}

// contextOf copies the build context to a folder.
func contextOf(t *testing.T, to string) {
	t.Helper()
	out, files := dockerignore(t), 0
	err := filepath.WalkDir(repository, func(from string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		file, err := filepath.Rel(repository, from)
		if err != nil || out(filepath.ToSlash(file)) {
			return err
		}
		files++
		return copyFile(from, filepath.Join(to, file))
	})
	if err != nil || files == 0 {
		t.Fatalf("%d files, %v", files, err)
	}
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, info.Mode().Perm())
}

// exposed returns the ports that an image says it serves.
func exposed(steps []instruction) (ports []string) {
	all := map[string]bool{}
	for _, i := range steps {
		if i.word == "EXPOSE" {
			for _, p := range strings.Fields(i.args) {
				all[p] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}
