package tokens

import (
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

// cpu returns the processor time that this process has taken.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAppend makes ids of texts that were not seen before (fresh), and again. MB/cpu-s is for each second of processor time, so it
// does not depend on what else the machine does.
func BenchmarkAppend(b *testing.B) {
	texts := benchTexts(b)
	for _, family := range []string{"qwen2_5", "llama3_1", "deepseek_v3"} {
		tokenizer := readFile(b, tokenizerFile(b, family))
		for name, text := range texts {
			data := []byte(text)
			ids := tokenizer.Append(nil, data, true)
			for _, fresh := range []bool{true, false} {
				kind := "again"
				if fresh {
					kind = "fresh"
				}
				b.Run(family+"/"+name+"/"+kind, func(b *testing.B) {
					b.SetBytes(int64(len(data)))
					b.ReportAllocs()
					var took time.Duration
					for b.Loop() {
						if fresh {
							b.StopTimer()
							clear(tokenizer.idle[0].words)
							tokenizer.memory = memory{}
							b.StartTimer()
						}
						start := cpu(b)
						ids = tokenizer.Append(ids[:0], data, true)
						took += cpu(b) - start
					}
					b.ReportMetric(float64(b.N)*float64(len(data))/1e6/took.Seconds(), "MB/cpu-s")
				})
			}
		}
	}
}

// BenchmarkOthers prints the speed of PyPI's tokenizers and fastokens on the same texts, on this machine.
func BenchmarkOthers(b *testing.B) {
	python := filepath.Join(tools, "tokenizers", "bin", "python")
	need(b, python)
	args := []string{"testdata/speed.py", tokenizerFile(b, "deepseek_v3")}
	for name, text := range benchTexts(b) {
		path := filepath.Join(b.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
		args = append(args, path)
	}
	out, err := exec.Command(python, args...).CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	b.Logf("deepseek_v3\n%s", out)
}

// BenchmarkRead reads a file.
func BenchmarkRead(b *testing.B) {
	for b.Loop() {
		readFile(b, tokenizerFile(b, "qwen2_5"))
	}
}
