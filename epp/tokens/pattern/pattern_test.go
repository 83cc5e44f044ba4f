package pattern

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// known are the expressions of vocabularies.
var known = map[string]string{
	"GPT-2":    `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
	"Llama 3":  `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	"o200k":    `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	"DeepSeek": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
}

// matches returns what a pattern finds in a text, with | between matches and what is between them in parentheses.
func matches(p *Pattern, text string) string {
	var parts []string
	for at := 0; at < len(text); {
		start, end, ok := p.Next([]byte(text), at)
		if !ok {
			parts = append(parts, "("+text[at:]+")")
			break
		}
		if start > at {
			parts = append(parts, "("+text[at:start]+")")
		}
		parts = append(parts, text[start:end])
		at = end
	}
	return strings.Join(parts, "|")
}

func TestMatches(t *testing.T) {
	for _, c := range []struct{ pattern, text, want string }{
		{known["GPT-2"], "I'll  see\n\n you", "I|'ll| | see|\n\n| you"},
		{known["Llama 3"], "I'LL  see\n\n you 12345", "I|'LL| | see|\n\n| you| |123|45"},
		{known["Llama 3"], "x   ", "x|   "},
		{known["Llama 3"], "'ſ\n'ſx", "'ſ|\n|'ſ|x"},
		{known["Llama 3"], "!!\r\n\r\nx", "!!\r\n\r\n|x"},
		{known["o200k"], "HTTPServer's café/", "HTTPServer's| café|/"},
		{known["o200k"], "camelCase", "camel|Case"},
		{known["DeepSeek"], "123 a.b", "(123)| a|.b"},
		{`a|ab`, "abab", "a|(b)|a|(b)"},       // the first alternative wins,
		{`ab|a`, "aba", "ab|a"},               // not the longest
		{`(?:a|ab)c`, "abc ac", "abc|( )|ac"}, // unless the rest does not match
		{`a+?b?`, "aab", "a|ab"},              // lazy
		{`a{2}`, "aaaaa", "aa|aa|(a)"},        //
		{`a{,2}b`, "aaab", "(a)|aab"},         //
		{`a(?=b)`, "aab", "(a)|a|(b)"},        // look-ahead
		{`a(?=b|c)`, "abaca", "a|(b)|a|(ca)"}, //
		{`a(?!b)`, "aba", "(ab)|a"},           // at the end too
		{`a(?=[^b])`, "aca", "a|(ca)"},        // not at the end
		{`[^\n[a-c]]+`, "xaby\n", "x|(ab)|y|(\n)"},
		{`[]a-]+`, "]-ab", "]-a|(b)"},
		{`\p{^L}+|\P{N}`, "1-a", "1-|a"},
		{`\x41\x{1F600}\u00e9`, "xA😀é", "(x)|A😀é"},
		{`(?i:(?-i:a)b)`, "aBAb", "aB|(Ab)"},
		{`.+`, "ab\nc", "ab|(\n)|c"},
	} {
		p, err := Parse(c.pattern)
		if err != nil {
			t.Errorf("%q: %v", c.pattern, err)
		} else if got := matches(p, c.text); got != c.want {
			t.Errorf("%q in %q: got %q, want %q", c.pattern, c.text, got, c.want)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ pattern, says string }{
		{`a++`, "possessive"}, {`a?+b`, "possessive"}, {`(?>a)`, "atomic"}, {`(?<=a)b`, "look-behind"}, {`(?<!a)b`, "look-behind"}, {`(?=ab)c`, "look-ahead over"},
		{`^a`, "anchors"}, {`a$`, "anchors"}, {`\bx`, `escape \b`}, {`\1`, `escape \1`}, {`[a&&b]`, "intersections"}, {`[[:alpha:]]`, "POSIX"},
		{`\p{Nope}`, "property"}, {`\pL`, "in braces"}, {`\p`, "in braces"}, {`a**`, "quantifier follows"}, {`a{3,2}`, "second number"}, {`a{1001}`, "up to 1000"}, {`a{x}`, "numbers"},
		{`a{1`, "brace"}, {`(a`, "not closed"}, {`a)`, "closes no group"}, {`[a`, "not closed"}, {`[b-a]`, "range"}, {`[a-`, "not closed"}, {`\`, "backslash"}, {`*`, "nothing to repeat"},
		{`a*`, "no characters"}, {``, "no characters"}, {`a|`, "no characters"}, {`(?!a)`, "no characters"}, {`(?!a)+`, "look-ahead cannot"}, {`\xff`, "number of a character"}, {`\u12`, "number of a character"},
		{`\x{110000}`, "number of a character"}, {"\xff", "UTF-8"}, {strings.Repeat("(", 200), "groups in groups"}, {strings.Repeat("[", 200), "groups in groups"}, {`((a{100}){100}){100}`, "too large"},
	} {
		p, err := Parse(c.pattern)
		if err == nil {
			t.Errorf("%q is accepted: %v", c.pattern, p)
		} else if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: the error does not say %q: %v", c.pattern, c.says, err)
		}
	}
}

// alike are expressions that Go's regexp can run too, and takes the same way.
var alike = []string{
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+`, `(?:a|ab)(?:c|bcd)(?:d*)`, `(?:ab|a)(?:bc)?|b+?c|[^ab]{2,3}`, `(a+|b+){2,4}?c|a`, `(?:é|e|漢)+?(?:😀|a)`,
	`[a-c]+b|c+|(?:a|b|c)+?😀`, `(?i:ab)+|\d{1,3}|\P{L}`,
}

// same compares a pattern with Go's regexp on a text. Classes that the two define differently must not be in it.
func same(t *testing.T, p *Pattern, re *regexp.Regexp, text string) {
	t.Helper()
	for at := 0; at < len(text); {
		start, end, ok := p.Next([]byte(text), at)
		want := re.FindStringIndex(text[at:])
		switch {
		case want == nil && !ok:
			return
		case want == nil || !ok || start != at+want[0] || end != at+want[1]:
			t.Fatalf("%q in %q from %d: got %d-%d (%v), want %v", re, text, at, start, end, ok, want)
		}
		at = end
	}
}

func TestLikeRegexp(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	letters := []rune("aaabbbcccdeABK 's1é漢😀\n")
	for _, expression := range alike {
		p, err := Parse(expression)
		if err != nil {
			t.Fatal(err)
		}
		re := regexp.MustCompile(expression)
		for range 500 {
			text := make([]rune, random.IntN(20))
			for i := range text {
				text[i] = letters[random.IntN(len(letters))]
			}
			same(t, p, re, string(text))
		}
	}
}

// FuzzParse parses any expression, and applies those that are accepted.
func FuzzParse(f *testing.F) {
	for _, p := range known {
		f.Add(p, "I'll see 123\n\n x")
	}
	for _, p := range alike {
		f.Add(p, "abcd")
	}
	f.Fuzz(func(t *testing.T, expression, text string) {
		if len(expression) > 200 || strings.Contains(expression, "{") && len(expression) > 60 {
			return // large tables take long
		}
		p, err := Parse(expression)
		if err != nil || !utf8.ValidString(text) {
			return
		}
		for at := 0; at < len(text); {
			start, end, ok := p.Next([]byte(text), at)
			if !ok {
				break
			}
			if start < at || end <= start || end > len(text) || !utf8.ValidString(text[start:end]) {
				t.Fatalf("%q in %q from %d: %d-%d", expression, text, at, start, end)
			}
			at = end
		}
	})
}

// TestEnds finds the same ends as Match does one by one, and as Next without what it leaves out.
func TestEnds(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	parts := []string{"a", "word", "Word", "WORD", "longerthaneightletters", "ſ", "é", "漢", "'", "'ll", "'S", " ", "  ", "\n", "\r\n", "\t", "1", "1234", ".", "()", "_", "/", "\x00", "z{", "@A", "[`"}
	matched := 0
	for name, expression := range known {
		p, err := Parse(expression)
		if err != nil {
			t.Fatal(err)
		}
		for range 3000 {
			var b strings.Builder
			for range random.IntN(12) {
				b.WriteString(parts[random.IntN(len(parts))])
			}
			text := []byte(b.String())
			var got, want []int
			for at := 0; at < len(text); {
				ends := make([]int, 1+random.IntN(4))
				n := p.Ends(text, at, ends)
				got = append(got, ends[:n]...)
				if n > 0 {
					at = ends[n-1]
				}
				if n < len(ends) {
					start, _, ok := p.Next(text, at)
					if ok && start == at {
						t.Fatalf("%s: %q: Ends stops at %d, where a match begins", name, text, at)
					}
					if at = start; !ok {
						break
					}
				}
			}
			for at, ok := 0, true; ok; {
				if _, at, ok = p.Next(text, at); ok {
					want = append(want, at)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s: %q: got %d, want %d", name, text, got, want)
			}
			matched += len(want)
		}
	}
	if matched < 10_000 {
		t.Errorf("there were only %d matches", matched)
	}
}

// TestUntil takes characters of a set for the end of a text.
func TestUntil(t *testing.T) {
	for _, c := range []struct{ pattern, until, text, want string }{
		{`\s+(?!\S)|\s+`, `[0-9]`, "  1  a  ", "  |(1)| | |(a)|  "},
		{`[a-c]+`, `[b]`, "abcab", "a|(b)|ca|(b)"},
		{`a(?=b)`, `[b]`, "ab", "(ab)"},
		{`a(?!b)`, `[b]`, "ab", "a|(b)"},
		{known["DeepSeek"], `\p{N}`, "ab12 cd\n3", "ab|(12)| cd|\n|(3)"},
	} {
		p, err := Parse(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		until, err := Parse(c.until)
		if err != nil {
			t.Fatal(err)
		}
		set, ok := until.Repeats()
		if !ok {
			t.Fatalf("%q is not of one set", c.until)
		}
		if p, err = p.Until(set); err != nil {
			t.Fatal(err)
		}
		if got := matches(p, c.text); got != c.want {
			t.Errorf("%q until %q in %q: got %q, want %q", c.pattern, c.until, c.text, got, c.want)
		}
	}
}

func TestMatchesOf(t *testing.T) {
	for _, c := range []struct {
		pattern, set string
		want         bool
	}{{`ab`, `[ab]`, true}, {`ab`, `[a]`, false}, {`a(?!b)`, `[a]`, true}, {`a(?=b)`, `[a]`, false}, {`x|b+`, `[b]`, true}, {known["DeepSeek"], `\p{N}`, false}, {known["Llama 3"], `\p{N}`, true}} {
		p, err := Parse(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		q, err := Parse(c.set)
		if err != nil {
			t.Fatal(err)
		}
		set, _ := q.Repeats()
		if got, err := p.MatchesOf(set); err != nil || got != c.want {
			t.Errorf("%q of %q: got %v, %v", c.pattern, c.set, got, err)
		}
	}
}

func TestRepeats(t *testing.T) {
	for _, c := range []struct {
		pattern, text string // all of whose characters are in the set, empty if there is no set
	}{
		{`\p{N}`, "1"}, {`\p{N}{1,3}`, "1"}, {`[ab]+`, "ab"}, {`(?:[ab]+)`, "ab"}, {`a{2}`, ""}, {`a{2,}`, ""}, {`ab`, ""}, {`a+|b`, ""}, {`a?b`, ""}, {`a(?=b)`, ""}, {`(?:ab)+`, ""},
	} {
		p, err := Parse(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		set, ok := p.Repeats()
		if ok != (c.text != "") {
			t.Errorf("%q: got %v", c.pattern, ok)
		}
		for _, r := range c.text {
			if !set.Contains(r) {
				t.Errorf("%q: the set lacks %q", c.pattern, r)
			}
		}
	}
}

func BenchmarkNext(b *testing.B) {
	text := []byte(strings.Repeat("The quick brown fox, isn't it? func main() { x := 12345 }\n\n", 1000))
	for name, expression := range known {
		b.Run(name, func(b *testing.B) {
			p, err := Parse(expression)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				for at, ok := 0, true; ok; {
					_, at, ok = p.Next(text, at)
				}
			}
		})
		b.Run(name+"/ends", func(b *testing.B) {
			p, err := Parse(expression)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			var ends [64]int
			for b.Loop() {
				for at, n := 0, len(ends); n == len(ends); {
					if n = p.Ends(text, at, ends[:]); n > 0 {
						at = ends[n-1]
					}
				}
			}
		})
	}
}

// TestBetween cuts texts where a pattern says so, and finds the same matches in the parts.
func TestBetween(t *testing.T) {
	for _, c := range []struct {
		pattern       string
		before, after byte
		apart, begins bool
	}{
		{known["Llama 3"], '\n', 'a', true, true},
		{known["Llama 3"], '\n', '1', true, true},
		{known["Llama 3"], '\n', ' ', false, false},
		{known["Llama 3"], 'a', 'b', false, false},
		{known["Llama 3"], 'a', '1', true, true},
		{known["o200k"], '\n', 'a', true, true},
		{known["GPT-2"], '\n', 'a', false, false}, // \s+(?!\S) looks at it
		{`\p{N}{1,3}`, '\n', 'a', true, false},
		{`\p{N}{1,3}`, '\n', '1', true, true},
		{`a+b`, '\n', 'a', true, false}, // a b may not follow
	} {
		p, err := Parse(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if apart, begins := p.Between(c.before, c.after); apart != c.apart || begins != c.begins {
			t.Errorf("%q between %q and %q: got %v, %v", c.pattern, c.before, c.after, apart, begins)
		}
	}
	random := rand.New(rand.NewPCG(5, 6))
	letters := []byte("aab1 \n\n'.x\r")
	cuts := 0
	for name, expression := range known {
		p, err := Parse(expression)
		if err != nil {
			t.Fatal(err)
		}
		for range 2000 {
			text := make([]byte, 2+random.IntN(12))
			for i := range text {
				text[i] = letters[random.IntN(len(letters))]
			}
			for i := 1; i < len(text); i++ {
				if apart, begins := p.Between(text[i-1], text[i]); apart && begins {
					cuts++
					if got, want := matches(p, string(text[:i]))+"|"+matches(p, string(text[i:])), matches(p, string(text)); got != want {
						t.Fatalf("%s: %q cut at %d: got %q, want %q", name, text, i, got, want)
					}
				}
			}
		}
	}
	if cuts < 1000 {
		t.Errorf("only %d cuts were tried", cuts)
	}
}
