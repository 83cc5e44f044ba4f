package tokens

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// sentences are of many languages, code, and what tokenizers have got wrong.
var sentences = []string{
	"", " ", "  ", "\n", "\r\n", "\t", "a", "é", "e\u0301", "\u033a\u03ce x", "\u0301", "\u0301\u0301 a", "가각", "\u1100\u1161\u11a8",
	"The quick brown fox jumps over the lazy dog. It's 12345.67, isn't it? We'LL see; they'Ve DON'T 'S 'ſ o'clock",
	"Der Übergrößenträger fährt über die Straße – „wirklich?“", "L’été, où êtes-vous allés ? À Noël, cœur naïf…", "¿Dónde está el niño? ¡Aquí!",
	"Быстрая коричневая лиса перепрыгивает через ленивую собаку.", "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.",
	"敏捷的棕色狐狸跳过了懒狗。今天是2024年5月17日，天气很好！", "素早い茶色の狐がのろまな犬を飛び越えました。カタカナとひらがな、ー１２３", "빠른 갈색 여우가 게으른 개를 뛰어넘습니다.",
	"الثعلب البني السريع يقفز فوق الكلب الكسول. مُحَمَّدٌ ١٢٣٤", "השועל החום המהיר קופץ מעל הכלב העצלן. שָׁלוֹם", "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। १२३",
	"สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ", "দ্রুত বাদামী শিয়াল অলস কুকুরের উপর ঝাঁপিয়ে পড়ে", "Nhanh như cáo nâu nhảy qua con chó lười biếng", "ქართული ენა", "አማርኛ ቋንቋ", "தமிழ் மொழி", "မြန်မာဘာသာ",
	"😀😃 👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ 🏳️‍🌈 1️⃣ 🫠🪿", "𝓗𝓮𝓵𝓵𝓸 𝟙𝟚𝟛 Ⅷ ½ ² ﬁ ﬃ ㎏ ㍿ Å Ω ℌ", "\u200b\u200d\ufeff\u00ad\u2028\u2029\u0085x\u00a0y\u3000z",
	"func main() {\n\tfmt.Println(\"hello, world\")\n}\n\n\n// done\n", "def f(x):\n    return x**2  # comment\n\n\nclass A(B):\n        pass\n",
	"<html><body class=\"x\">&nbsp;</body></html>", "SELECT * FROM t WHERE a='b' AND c<>3;", "https://example.com/a/b?c=d&e=%20f#g", "{\"a\":[1,2,3],\"b\":null}",
	"#!/bin/sh\r\nset -e\r\n\r\n\r\nexit 0\r\n", "| a | b |\n|---|---|\n| 1 | 2 |\n\n* x\n  * y\n", "---------------------------------------------------------------- ================",
	"camelCaseWord HTTPServer snake_case_word kebab-case-word SCREAMING_SNAKE v1.2.3-rc4", "1234567890123456789012345678901234567890", "0x1F 1e-10 3.14159 1,000,000",
	"\x00\x01\x02\x7f", "\xff\xfe\xc3", "a\xe2\x82b\xf0\x9f\x98", "\xed\xa0\x80\xed\xb0\x80", "\xf4\x90\x80\x80\xc0\xaf\xe0\x80\x80",
	"a" + strings.Repeat("\u0301\u0323", 40) + "b", strings.Repeat("\u0323\u0301", 20), "q\u0307\u0323 \u1e9b\u0323 \u0344 \u0374 \u037e \u2126 \u212b",
	strings.Repeat("a", 3000), strings.Repeat("ab", 2000), strings.Repeat(" ", 500) + "x", strings.Repeat("\n", 300), strings.Repeat("漢", 600), strings.Repeat("\U000e0041", 50),
	strings.Repeat("abcdefghij", 300), strings.Repeat("!", 700), strings.Repeat("7", 1000), strings.Repeat("\t\n \r\n", 100), "▁▁ ▁a ▁", "Ġ Ċ ĉ", "<0x41> <0xFF>",
}

// fragments are what random texts are made of.
var fragments = []string{
	"the", " the", "The", "THE", " and", "ing", "’s", "'s", "'S", "'re", "'ll", "'LL", "'ſ", "'", "''", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", " \n", "\n ",
	"\u00a0", "\u3000", "\u2003", "\u200b", "\u0085", "\u2028", "\x0b", "\x0c", "1", "12", "123", "1234", "٣", "½", "²", "Ⅳ", ".", ",", "!", "?", "...", "…", "-", "--", "/", "//", "#", "$", "+", "=", "<", ">", "|", "\"", "(", ")", "_", "__",
	"é", "e\u0301", "\u0301", "\u033a", "\u0323\u0301", "ß", "İ", "ı", "Å", "Ω", "ǅ", "ʰ", "ª", "漢", "字", "かな", "カナ", "ー", "한", "글", "\u1100", "\u1161", "ا", "\u064e", "\u0651", "ש", "\u05b8", "ไ", "\u0e49", "क", "\u094d", "\u093f",
	"😀", "👍🏽", "👩‍💻", "🇩", "❤️", "𝒳", "\U0001fadf", "\U000105c0", "\U0002ebf1", "\U00010d40", "\u0378", "\ue000", "\ufffd", "\x00", "\x7f", "\xff", "\xe2\x82", "x", "y", "Zz", "qwrtplkjh", "xyzzy", "▁", "Ġ",
}

// randomTexts returns texts of the fragments, of a tokenizer's added tokens, and of characters of all kinds.
func randomTexts(n int, tokens []string) []string {
	random := rand.New(rand.NewPCG(1, 2))
	out := make([]string, n)
	for i := range out {
		var b strings.Builder
		for range 1 + random.IntN(30) {
			switch k := random.IntN(20); {
			case k == 0:
				b.WriteRune(random.Int32N(utf8.MaxRune + 1)) // surrogates become U+FFFD
			case k == 1:
				b.WriteRune(random.Int32N(0x3000))
			case k == 2 && len(tokens) > 0:
				b.WriteString(tokens[random.IntN(len(tokens))])
			case k < 5:
				for range 1 + random.IntN(12) {
					b.WriteByte(byte('a' + random.IntN(26)))
				}
			default:
				b.WriteString(fragments[random.IntN(len(fragments))])
			}
		}
		out[i] = b.String()
	}
	return out
}

// repositoryText returns the files of this repository with an extension, n bytes of them.
func repositoryText(t testing.TB, extension string, n int) string {
	t.Helper()
	var b strings.Builder
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") || b.Len() >= n {
			return fs.SkipDir
		}
		if filepath.Ext(path) != extension {
			return nil
		}
		data, err := os.ReadFile(path)
		b.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if b.Len() < n {
		t.Fatalf("there are only %d bytes of %s files", b.Len(), extension)
	}
	return b.String()[:n]
}

// randomWords returns n bytes of words that no vocabulary has.
func randomWords(n int) string {
	random := rand.New(rand.NewPCG(3, 4))
	var b strings.Builder
	for b.Len() < n {
		for range 2 + random.IntN(10) {
			b.WriteByte(byte('a' + random.IntN(26)))
		}
		fmt.Fprint(&b, " ")
	}
	return b.String()[:n]
}
