package charts_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// flagsFile has the flags of the programs, against which the chart checks those of its values.
const flagsFile = chart + "/flags.yaml"

// flagPrograms are the programs whose flags values may set.
var flagPrograms = []string{"batch", "epp", "sidecar", "sim"}

// TestFlagsFile holds the chart's list of flags to what the programs accept.
func TestFlagsFile(t *testing.T) {
	var b strings.Builder
	b.WriteString("# The flags that values may give to programs, out of their --help: written by go test ./charts -update.\n")
	for _, name := range flagPrograms {
		fmt.Fprintf(&b, "%s:\n", name)
		for _, flag := range acceptedFlags(t, name) {
			fmt.Fprintf(&b, "  - %s\n", flag)
		}
	}
	compare(t, flagsFile, b.String())
}

// TestFlagsAreAccepted tries the list: a program that is given one of its flags may complain of its value, but knows it; what
// it does not support, or has never heard of, is not in the list.
func TestFlagsAreAccepted(t *testing.T) {
	for name, foreign := range map[string][]string{"epp": {"feature-gates", "made-up"}, "sidecar": {"configuration", "made-up"}, "sim": {"made-up"}} {
		flags := acceptedFlags(t, name)
		for _, flag := range slices.Concat(flags, foreign) {
			out, _ := exec.CommandContext(t.Context(), program(t, name), "--"+flag+"=", "--check").CombinedOutput()
			refused := strings.Contains(string(out), "unknown flag --"+flag) || strings.Contains(string(out), "flag --"+flag+" is not supported")
			if listed := slices.Contains(flags, flag); listed == refused {
				t.Errorf("%s --%s is in the list: %t, and the program says\n%s", name, flag, listed, out)
			}
		}
	}
}

// acceptedFlags returns the flags with which a program starts, sorted: with their other names, and those without effect.
func acceptedFlags(t *testing.T, name string) (flags []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program(t, name), "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	// A flag begins an entry; its other names follow it at once, or end what is said of it.
	names := regexp.MustCompile(`(?:^|; also )--([a-z][-a-z0-9]*(?:, --[a-z][-a-z0-9]*)*)`)
	for group := range strings.SplitSeq(string(out), "\n\n") {
		title, entries, _ := strings.Cut(group, ":\n")
		if title == "Not supported" {
			continue
		}
		for _, entry := range strings.Split("\n"+entries, "\n  --")[1:] {
			for _, m := range names.FindAllStringSubmatch("--"+strings.Join(strings.Fields(entry), " "), -1) {
				flags = append(flags, strings.Split(m[1], ", --")...)
			}
		}
	}
	slices.Sort(flags)
	flags = slices.Compact(flags)
	if len(flags) < 15 {
		t.Fatalf("only %q were read from %s --help", flags, name)
	}
	return flags
}
