package sim

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// The token ids. They stand in for a trained vocabulary: pure arithmetic, so that every engine and every test agrees on
// them without a file, and at about three characters per token of English prose on a large vocabulary.
//
//	    0 …     7   special tokens; text never turns into them, and of them only tokenEOS is ever generated
//	    8 …   263   single bytes
//	  264 …   289   " a" … " z"
//	  290 …   965   "aa" … "zz"
//	  966 …  1641   " aa" … " zz"
//	 1642 … 19217   "aaa" … "zzz"
//	19218 … 36793   " aaa" … " zzz"
//	36794 …         further ids of a large vocabulary; text never turns into them, and they stand for letters (see appendToken)
//
// Text is split greedily from the left into the longest piece whose id is inside the vocabulary. Joining the pieces gives
// back the same bytes.
const (
	tokenEOS     = 2
	tokenTurn    = 3 // opens a chat turn, as the recorded model's template does
	tokenEndTurn = 4

	firstByte  = 8
	firstPiece = firstByte + 256
	letters    = 26
)

// pieceKinds are the ranges of pieces in the order of their ids.
var pieceKinds = []struct {
	first   int
	letters int
	space   bool
}{
	{firstPiece, 1, true},
	{firstPiece + 26, 2, false},
	{firstPiece + 26 + 676, 2, true},
	{firstPiece + 26 + 2*676, 3, false},
	{firstPiece + 26 + 2*676 + 17576, 3, true},
}

const pieceEnd = firstPiece + 26 + 2*676 + 2*17576

// tokenizer splits text for a vocabulary of the given size.
type tokenizer struct{ vocabulary int }

func (t tokenizer) split(text string) []int {
	tokens := make([]int, 0, len(text)/2+1)
	for i := 0; i < len(text); {
		token, length := t.next(text[i:])
		tokens = append(tokens, token)
		i += length
	}
	return tokens
}

// next returns the first token of text and how many bytes it covers.
func (t tokenizer) next(text string) (token, length int) {
	token, length = firstByte+int(text[0]), 1
	space := text[0] == ' '
	start := 0
	if space {
		start = 1
	}
	number := 0
	for n := 1; n <= 3 && start+n <= len(text); n++ {
		c := text[start+n-1]
		if c < 'a' || c > 'z' {
			break
		}
		number = number*letters + int(c-'a')
		if id, ok := pieceID(n, space, number); ok && id < t.vocabulary {
			token, length = id, start+n
		}
	}
	return token, length
}

func pieceID(n int, space bool, number int) (int, bool) {
	for _, k := range pieceKinds {
		if k.letters == n && k.space == space {
			return k.first + number, true
		}
	}
	return 0, false
}

// appendToken appends the bytes a token stands for. Special tokens have none, as with skip_special_tokens. Ids past the
// last piece repeat the pieces, so that generated text is letters on any vocabulary.
func appendToken(dst []byte, token int) []byte {
	switch {
	case token < firstByte:
		return dst
	case token < firstPiece:
		return append(dst, byte(token-firstByte))
	case token >= pieceEnd:
		token = firstPiece + (token-pieceEnd)%(pieceEnd-firstPiece)
	}
	for i := len(pieceKinds) - 1; i >= 0; i-- {
		if k := pieceKinds[i]; token >= k.first {
			return appendPiece(dst, k.space, k.letters, token-k.first)
		}
	}
	return dst
}

func appendPiece(dst []byte, space bool, n, number int) []byte {
	if space {
		dst = append(dst, ' ')
	}
	at := len(dst)
	for range n {
		dst = append(dst, 'a')
	}
	for i := at + n - 1; i >= at; i-- {
		dst[i] += byte(number % letters)
		number /= letters
	}
	return dst
}

// tokenString is the name of a token in /tokenize and in logprobs: special tokens show.
func tokenString(token int) string {
	switch token {
	case tokenTurn:
		return "<|start|>"
	case tokenEndTurn:
		return "<|end|>"
	}
	if token < firstByte {
		return fmt.Sprintf("<|%d|>", token)
	}
	return validText(appendToken(nil, token))
}

func joinTokens(tokens []int) string {
	var text []byte
	for _, t := range tokens {
		text = appendToken(text, t)
	}
	return validText(text)
}

// validText replaces what is not UTF-8, as the engine's own detokenizer does.
func validText(text []byte) string { return strings.ToValidUTF8(string(text), string(utf8.RuneError)) }

// chatTokens applies the chat template: every message as a turn, then the opening of the assistant's.
func (t tokenizer) chatTokens(messages []chatMessage) []int {
	var tokens []int
	for _, m := range messages {
		tokens = append(tokens, tokenTurn)
		tokens = append(tokens, t.split(m.role+"\n"+m.text)...)
		tokens = append(tokens, tokenEndTurn)
		tokens = append(tokens, t.split("\n")...)
	}
	return append(append(tokens, tokenTurn), t.split("assistant\n")...)
}

// detokenizer turns tokens into text as they come. A token that ends inside a character gives no text until the
// character is whole, so an event of a stream may be empty although a token was generated.
type detokenizer struct{ pending []byte }

func (d *detokenizer) push(token int) string {
	d.pending = appendToken(d.pending, token)
	whole := len(d.pending)
	// A character has at most four bytes: only the last three can be the beginning of an incomplete one.
	for i := max(0, whole-utf8.UTFMax+1); i < whole; i++ {
		if utf8.RuneStart(d.pending[i]) && !utf8.FullRune(d.pending[i:]) {
			whole = i
			break
		}
	}
	text := validText(d.pending[:whole])
	d.pending = append(d.pending[:0], d.pending[whole:]...)
	return text
}

// flush gives up waiting for the rest of a character.
func (d *detokenizer) flush() string {
	text := validText(d.pending)
	d.pending = d.pending[:0]
	return text
}
