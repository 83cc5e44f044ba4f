package model

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// The token ids replace a trained vocabulary. They are computed, so that every engine and every test agrees on them without a
// file. English prose has about three characters per token on a large vocabulary.
//
//	    0 …     7   special tokens; text never turns into them, and of them only EOS is ever generated
//	    8 …   263   single bytes
//	  264 …   289   " a" … " z"
//	  290 …   965   "aa" … "zz"
//	  966 …  1641   " aa" … " zz"
//	 1642 … 19217   "aaa" … "zzz"
//	19218 … 36793   " aaa" … " zzz"
//	36794 …         further ids of a large vocabulary; text never turns into them, and they stand for letters (see appendToken)
//
// Text is split greedily from the left into the longest piece whose id is inside the vocabulary. The joined pieces have the
// same bytes as the text.
const (
	// EOS ends an answer.
	EOS = 2
	// FirstByte is the token of byte 0. All tokens from here on have text.
	FirstByte = 8

	turn    = 3 // opens a chat turn, as the recorded model's template does
	endTurn = 4

	firstPiece = FirstByte + 256
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

// Tokenizer splits text for a vocabulary.
type Tokenizer struct {
	// Vocabulary is the number of token ids.
	Vocabulary int
}

// Split returns the tokens of a text.
func (t Tokenizer) Split(text string) []int {
	tokens := make([]int, 0, len(text)/2+1)
	for i := 0; i < len(text); {
		token, length := t.next(text[i:])
		tokens = append(tokens, token)
		i += length
	}
	return tokens
}

// next returns the first token of text and how many bytes it covers.
func (t Tokenizer) next(text string) (token, length int) {
	token, length = FirstByte+int(text[0]), 1
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
		if id, ok := pieceID(n, space, number); ok && id < t.Vocabulary {
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

// appendToken appends the bytes that a token stands for. Special tokens have none, as with skip_special_tokens. Ids past the
// last piece repeat the pieces, so that generated text is letters on any vocabulary.
func appendToken(dst []byte, token int) []byte {
	switch {
	case token < FirstByte:
		return dst
	case token < firstPiece:
		return append(dst, byte(token-FirstByte))
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

// TokenName returns the name of a token in /tokenize and in log probabilities, where special tokens have one.
func TokenName(token int) string {
	switch token {
	case turn:
		return "<|start|>"
	case endTurn:
		return "<|end|>"
	}
	if token < FirstByte {
		return fmt.Sprintf("<|%d|>", token)
	}
	return validText(appendToken(nil, token))
}

// Join returns the text of tokens.
func Join(tokens []int) string {
	return validText(bytesOf(tokens))
}

// validText replaces bytes that are not UTF-8, as the real engine's detokenizer does.
func validText(text []byte) string { return strings.ToValidUTF8(string(text), string(utf8.RuneError)) }

// Message is one turn of a conversation.
type Message struct{ Role, Text string }

// Chat returns the tokens of a conversation by the chat template: every message as a turn, then the opening of the assistant's.
func (t Tokenizer) Chat(messages []Message) []int {
	var tokens []int
	for _, m := range messages {
		tokens = append(tokens, turn)
		tokens = append(tokens, t.Split(m.Role+"\n"+m.Text)...)
		tokens = append(tokens, endTurn)
		tokens = append(tokens, t.Split("\n")...)
	}
	return append(append(tokens, turn), t.Split("assistant\n")...)
}

// Detokenizer turns tokens into text as they come. Its zero value is ready. Text that ends with an incomplete character, or with
// another replacement character, waits until more follows, so an event of a stream may be empty although a token was generated.
type Detokenizer struct{ pending []byte }

// Begin says which tokens are before those that are pushed. If they end with an incomplete character, the first text will be that of all
// of them, as with the real engine: it does not know how much of it is old.
func (d *Detokenizer) Begin(prompt []int) {
	end := prompt[max(0, len(prompt)-utf8.UTFMax):]
	if !endsIncomplete(bytesOf(end)) {
		return
	}
	d.pending = bytesOf(prompt)
}

func bytesOf(tokens []int) (text []byte) {
	for _, t := range tokens {
		text = appendToken(text, t)
	}
	return text
}

func endsIncomplete(text []byte) bool {
	return strings.HasSuffix(validText(text), string(utf8.RuneError))
}

// Push returns the text that a token completes.
func (d *Detokenizer) Push(token int) string {
	d.pending = appendToken(d.pending, token)
	if endsIncomplete(d.pending[max(0, len(d.pending)-utf8.UTFMax):]) {
		return ""
	}
	return d.Flush()
}

// Flush returns the text that waits.
func (d *Detokenizer) Flush() string {
	text := validText(d.pending)
	d.pending = d.pending[:0]
	return text
}
