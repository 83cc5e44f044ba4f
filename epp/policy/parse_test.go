package policy_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/policy"
)

// comments are those that a file begins with: what is to be made of it.
func comments(t *testing.T, file string) (data []byte, lines []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		text, isComment := strings.CutPrefix(line, "# ")
		if !isComment {
			break
		}
		lines = append(lines, strings.TrimSuffix(text, "\n"))
	}
	return data, lines
}

func each(t *testing.T, dir string, check func(t *testing.T, data []byte, want []string)) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
	if err != nil || len(all) == 0 {
		t.Fatalf("testdata/%s has no files (%v)", dir, err)
	}
	for _, file := range all {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, want := comments(t, file)
			check(t, data, want)
		})
	}
}

// TestBadFiles: the comments at the top of each file are the problems that must be found, all of them, word by word.
func TestBadFiles(t *testing.T) {
	each(t, "bad", func(t *testing.T, data []byte, want []string) {
		_, err := policy.Parse(data)
		if err == nil {
			t.Fatal("was accepted")
		}
		if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", err, strings.Join(want, "\n"))
		}
	})
}

// TestGoodFiles: the comments at the top of each file are requests, with the policy's expected answers.
func TestGoodFiles(t *testing.T) {
	each(t, "good", func(t *testing.T, data []byte, want []string) {
		p, err := policy.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range want {
			question, answer, _ := strings.Cut(line, ": ")
			if objective, asked := strings.CutPrefix(question, "objective "); asked {
				got := "unknown"
				if priority, known := p.Priority(objective); known {
					got = fmt.Sprint(priority)
				}
				if got != answer {
					t.Errorf("objective %s: %s, want %s", objective, got, answer)
				}
			} else if got := shares(p, question); got != answer {
				t.Errorf("%s: %s, want %s", question, got, answer)
			}
		}
	})
}

// shares finds out how a policy rewrites a model, by asking it very often.
func shares(p *epp.Policy, model string) string {
	count := map[string]int{}
	const draws = 30_000
	random := rand.New(rand.NewPCG(1, 2))
	var by string
	for range draws {
		target, rewrite, ok := p.Target(model, random)
		if !ok {
			return "as it is"
		}
		by = rewrite
		count[target]++
	}
	var all []string
	for _, target := range slices.Sorted(maps.Keys(count)) {
		all = append(all, target+" "+fraction(float64(count[target])/draws))
	}
	return strings.Join(all, ", ") + ", by " + by
}

// fraction names a share that is one of those in the files.
func fraction(share float64) string {
	for text, of := range map[string]float64{"1/1": 1, "1/3": 1. / 3, "90/100": .9, "10/100": .1} {
		if share > of-.02 && share < of+.02 {
			return text
		}
	}
	return fmt.Sprint(share)
}

func TestProblemsAreBounded(t *testing.T) {
	_, err := policy.Parse([]byte(strings.Repeat("7\n---\n", 1000)))
	if err == nil || strings.Count(err.Error(), "\n") != 50 || !strings.HasSuffix(err.Error(), "\nand 950 more") {
		t.Errorf("got %v", err)
	}
}

// Every file is read or refused in time, and a refusal has a reason.
func FuzzParse(f *testing.F) {
	for _, dir := range []string{"good", "bad"} {
		files, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
		if err != nil || len(files) == 0 {
			f.Fatal(err, files)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := policy.Parse(data)
		if (p == nil) == (err == nil) {
			t.Fatalf("%v and %v", p, err)
		}
		if err != nil && len(bytes.TrimSpace([]byte(err.Error()))) == 0 {
			t.Error("refused without a reason")
		}
		p.Target("m", rand.New(rand.NewPCG(1, 1)))
	})
}
