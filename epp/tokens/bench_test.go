package tokens

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// benchTexts are texts about the size of a prompt of 100k tokens.
func benchTexts(b *testing.B) map[string]string {
	const size = 400_000
	return map[string]string{"code": repositoryText(b, ".go", size), "markdown": repositoryText(b, ".md", size), "random": randomWords(size)}
}

// otherTexts returns more text of each kind: not much, because there is not more Markdown here.
func otherTexts(b *testing.B) map[string][]byte {
	const skip, size = 400_000, 300_000
	other := func(text string) []byte { return []byte(text[skip:]) }
	return map[string][]byte{"code": other(repositoryText(b, ".go", skip+size)), "markdown": other(repositoryText(b, ".md", skip+size)),
		"random": other(randomWords(skip + size))}
}

// cpu returns the processor time that this process has taken.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAppend makes ids of a text: of the first one that a tokenizer gets (first), of one that it gets after others of its kind (fresh), and
// of one that it has seen (again). MB/cpu-s is for each second of processor time, so it depends less on what else the machine does, and best is of
// the fastest of all rounds.
func BenchmarkAppend(b *testing.B) {
	texts, others := benchTexts(b), otherTexts(b)
	for _, family := range []string{"qwen2_5", "llama3_1", "deepseek_v3", "gemma3", "llama2"} {
		tokenizer := readFile(b, tokenizerFile(b, family))
		for name, text := range texts {
			data := []byte(text)
			ids := tokenizer.Append(nil, data, true)
			for _, kind := range []string{"first", "fresh", "again"} {
				b.Run(family+"/"+name+"/"+kind, func(b *testing.B) {
					b.SetBytes(int64(len(data)))
					b.ReportAllocs()
					took, best := time.Duration(0), time.Hour
					for b.Loop() {
						if kind != "again" { // the clock goes on: StopTimer stops all goroutines, and their start would be measured
							tokenizer.idle[0].words.clear()
							tokenizer.memory = memory{}
						}
						if kind == "fresh" {
							ids = tokenizer.Append(ids[:0], others[name], true)
						}
						start := cpu(b)
						ids = tokenizer.Append(ids[:0], data, true)
						one := cpu(b) - start
						took, best = took+one, min(best, one)
					}
					b.ReportMetric(float64(b.N)*float64(len(data))/1e6/took.Seconds(), "MB/cpu-s")
					b.ReportMetric(float64(len(data))/1e6/best.Seconds(), "best-MB/cpu-s")
				})
			}
		}
	}
}

// BenchmarkOthers prints the speed of PyPI's tokenizers and fastokens on the same texts, on this machine.
func BenchmarkOthers(b *testing.B) {
	python := filepath.Join(tools, "tokenizers", "bin", "python")
	need(b, python)
	var files []string
	others := otherTexts(b)
	for name, text := range benchTexts(b) {
		path := filepath.Join(b.TempDir(), name)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.WriteFile(path+".other", others[name], 0o600)); err != nil {
			b.Fatal(err)
		}
		files = append(files, path)
	}
	for _, family := range []string{"deepseek_v3", "gemma3"} {
		b.Run(family, func(b *testing.B) {
			out, err := exec.Command(python, append([]string{"testdata/speed.py", tokenizerFile(b, family)}, files...)...).CombinedOutput()
			if err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			b.Logf("%s\n%s", family, out)
		})
	}
}

// BenchmarkRead reads a file.
func BenchmarkRead(b *testing.B) {
	for b.Loop() {
		readFile(b, tokenizerFile(b, "qwen2_5"))
	}
}

// clear forgets all words.
func (w words) clear() {
	clear(w.short)
	clear(w.long)
}
