package docs_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// commandLines returns the programs and commands that have help pages of their own.
func commandLines(t *testing.T) []string {
	t.Helper()
	lines := []string{"batch", "epp", "sidecar", "keeper", "sim"}
	page, err := invoke(t, "tandem", "--help")
	if err != nil {
		t.Fatalf("%v\n%s", err, page)
	}
	_, list, _ := strings.Cut(page, "\nCommands:\n")
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z-]+) +\S`).FindAllStringSubmatch(list, -1) {
		lines = append(lines, "tandem "+m[1])
	}
	if !slices.Contains(lines, "tandem up") {
		t.Fatalf("no commands in\n%s", page)
	}
	return lines
}

// invoke runs a program, or a program and a command, with further arguments, without the environment's settings.
func invoke(t *testing.T, commandLine string, args ...string) (output string, err error) {
	t.Helper()
	words := strings.Fields(commandLine)
	cmd := exec.CommandContext(t.Context(), program(t, words[0]), append(words[1:], args...)...)
	cmd.Dir = t.TempDir()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

var (
	helpFlag    = regexp.MustCompile(`(?m)^  --([a-z0-9-]+)(?: (\S.*))?$`)
	helpMention = regexp.MustCompile(`--([a-z][a-z0-9-]*)`)
	helpAliases = regexp.MustCompile(`; also (--[a-z-]+(?:, --[a-z-]+)*)`)
	helpInert   = regexp.MustCompile(`(?m)^  --([a-z0-9-]+):`)
	helpHeading = regexp.MustCompile(`(?m)^(Not supported|Accepted without effect):$`)
)

// othersFlags are flags of other programs that help texts name, after a word that says whose they are.
var othersFlags = regexp.MustCompile(`\((its|their) --[a-z-]+\)|the EPP's --[a-z-]+|with --secure-serving(=false)?|vLLM: --[a-z-]+|tandem envoy-config --[a-z-]+|sidecar starts it \(--keeper\)`)

// companions are the flags without which a command, or one flag of a command, refuses all others, separated by spaces.
var companions = map[string]string{
	"batch": "--data=data --upstream=http://127.0.0.1:1", "tandem drain": "--sidecar=127.0.0.1:1", "tandem doctor": "--epp-admin=127.0.0.1:1",
	"epp --endpoint-selector": "--endpoint-target-ports=7", "epp --share-cert-path": "--share-ca=7", "tandem up --prefill-engine": "--decode-engine=127.0.0.1:2",
	"sidecar --enable-ssrf-protection":       "--inference-pool=llama",
	"sidecar --moriio-write-mode":            "--moriio-local-pod-ip=10.0.0.8",
	"sidecar --moriio-parallel-dispatch":     "--moriio-write-mode --moriio-local-pod-ip=10.0.0.8",
	"batch --webhook-secret-file":            "--webhook-url=http://127.0.0.1:2",
	"tandem envoy-config --pool-server-name": "--pool-tls", "tandem envoy-config --canary-percent": "--canary=127.0.0.1:1",
}

// TestHelpTellsTheTruth: each flag that a help page lists is taken by --check, or is refused for its value; and a page names no
// flag of another program without saying so. The house rule "flags" checks that the
// programs read them.
func TestHelpTellsTheTruth(t *testing.T) {
	for _, line := range commandLines(t) {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			page, err := invoke(t, line, "--help")
			if err != nil {
				t.Fatalf("%v\n%s", err, page)
			}
			known := map[string]bool{"help": true}
			listed := page
			if at := helpHeading.FindStringIndex(page); at != nil {
				listed = page[:at[0]]
			}
			checks := strings.Contains(listed, "\n  --check\n")
			for _, f := range helpFlag.FindAllStringSubmatch(listed, -1) {
				name, arg := f[1], f[2]
				known[name] = true
				if name == "config" || name == "check" || name == "version" || name == "help" || !checks {
					continue
				}
				if why := notTaken(t, line, name, arg); why != "" {
					t.Errorf("--%s is listed, but %s", name, why)
				}
			}
			if len(known) < 2 {
				t.Fatalf("no flags in\n%s", page)
			}
			flat := strings.Join(strings.Fields(page), " ")
			for _, aliases := range helpAliases.FindAllStringSubmatch(flat, -1) {
				for _, m := range helpMention.FindAllStringSubmatch(aliases[1], -1) {
					known[m[1]] = true
				}
			}
			for _, m := range helpInert.FindAllStringSubmatch(page, -1) {
				known[m[1]] = true // refused or ignored
			}
			for _, m := range helpMention.FindAllStringSubmatch(othersFlags.ReplaceAllString(flat, ""), -1) {
				if !known[m[1]] {
					t.Errorf("the page names --%s, which this command does not have", m[1])
				}
			}
		})
	}
}

// notTaken says why a flag was not taken; "" if it was: the effective configuration has it, or its value is refused.
func notTaken(t *testing.T, line, name, arg string) string {
	t.Helper()
	given := "--" + name
	if arg != "" {
		given += "=" + sampleOf(t, arg)
	}
	args := []string{given, "--check"}
	for of, flags := range companions {
		for _, companion := range strings.Fields(flags) {
			if (of == line || of == line+" --"+name) && !strings.HasPrefix(companion, "--"+name+"=") {
				args = append(args, companion)
			}
		}
	}
	out, _ := invoke(t, line, args...)
	switch {
	case regexp.MustCompile(`(?m)^` + name + `:.* # --` + name + `$`).MatchString(out): // the origin of the value
	case regexp.MustCompile(`(?m)^` + name + `: # --` + name + `$`).MatchString(out): // a list
	case strings.Contains(out, "(--"+name+")"): // what is wrong with the value
	default:
		return given + " --check prints no such setting:\n" + out
	}
	return ""
}

// sampleOf returns a value for an argument that a help page names. It may be refused, but not for its form.
func sampleOf(t *testing.T, arg string) string {
	t.Helper()
	switch {
	case strings.HasPrefix(arg, "FILE"), strings.HasPrefix(arg, "PATH"):
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	case strings.Contains(arg, "PORT") && strings.Contains(arg, ":"):
		return "127.0.0.1:1"
	case strings.HasPrefix(arg, "DURATION"):
		return "7s"
	case strings.HasPrefix(arg, "NAME"), strings.HasPrefix(arg, "SPEC"):
		return "seven"
	}
	return "7"
}
