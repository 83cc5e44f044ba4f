package read_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

// words is n different tokens of text, four bytes each.
func words(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%03d ", i)
	}
	return b.String()
}

func TestPromptTokens(t *testing.T) {
	const image = `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" + `"}}`
	chat := func(content string) string { return `{"messages":[{"content":` + content + `}]}` }
	for _, c := range []struct {
		name string
		api  pd.API
		body string
		want int
	}{
		{"nothing", pd.APIChat, `{}`, 0},
		{"four bytes", pd.APICompletions, `{"prompt":"abcd"}`, 1},
		{"a begun token", pd.APICompletions, `{"prompt":"abcde"}`, 2},
		{"escapes count as what they stand for", pd.APICompletions, `{"prompt":"\n\t\"\u0041"}`, 1},
		{"characters count as UTF-8", pd.APICompletions, `{"prompt":"\ud83d\ude00é世\u4f60"}`, 3},
		{"a lone surrogate", pd.APICompletions, `{"prompt":"\ud83dx"}`, 1},
		{"a lone surrogate at the end", pd.APICompletions, `{"prompt":"\ud83d"}`, 1},
		{"what is no text is no prompt", pd.APICompletions, `{"prompt":12,"suffix":"abcd"}`, 0},
		{"token ids", pd.APICompletions, `{"prompt":[1, 22,333 ,151935]}`, 4},
		{"one id", pd.APICompletions, `{"prompt":[151935]}`, 1},
		{"prompts", pd.APICompletions, `{"prompt":["abcd","efghi\n\\\"","]"]}`, 4},
		{"prompts of ids", pd.APICompletions, `{"prompt":[[1,2,3],[4],[]]}`, 4},
		{"generate", pd.APIGenerate, `{"token_ids":[1,2,3],"sampling_params":{"stop":["abcd"]}}`, 3},
		{"embeddings", pd.APIEmbeddings, `{"input":["abcd","efgh"]}`, 2},
		{"role and content", pd.APIChat, `{"messages":[{"role":"user","content":"abcd"},{"content":"efgh","role":"user"}]}`, 4},
		{"no content", pd.APIChat, chat(`null`), 0},
		{"text parts", pd.APIChat, chat(`[{"type":"text","text":"abcd"},{"text":"efgh","type":"text"}]`), 2},
		{"a part's other members", pd.APIChat, chat(`[{"type":"text","text":"abcd","cache_control":{"type":"ephemeral"}}]`), 1},
		{"an image", pd.APIChat, chat(`[` + image + `]`), 225},
		{"an image whose type comes last", pd.APIChat, chat(`[{"image_url":{"url":"data:"},"type":"image_url"}]`), 225},
		{"images and text", pd.APIChat, chat(`[` + image + `,{"type":"text","text":"abcd"},` + image + `]`), 451},
		{"sound", pd.APIChat, chat(`[{"type":"input_audio","input_audio":{}}]`), 250},
		{"video", pd.APIChat, chat(`[{"type":"video_url","video_url":{}}]`), 1800},
		{"a part of an unknown type", pd.APIChat, chat(`[{"type":"xx","x":1}]`), 5},
		{"a part of a long type", pd.APIChat, chat(`[{"type":"image_urlimage_urlimage_urlimage_url"}]`), 12},
		{"no tools", pd.APIChat, `{"tools":null,"messages":[]}`, 0},
		{"tools", pd.APIChat, `{"tools":[{"a":1}],"messages":[]}`, 3},
		{"a call", pd.APIChat, `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"a":1}]}]}`, 5},
		{"system", pd.APIMessages, `{"system":"abcd","messages":[]}`, 1},
		{"system in parts", pd.APIMessages, `{"system":[{"type":"text","text":"abcd"}],"messages":[]}`, 1},
		{"the result of a tool", pd.APIMessages, chat(`[{"type":"tool_result","tool_use_id":"x","content":"abcd"}]`), 1},
		{"a result in parts", pd.APIMessages,
			chat(`[{"type":"tool_result","content":[{"type":"text","text":"abcd"},{"type":"image","source":{}}]}]`), 226},
		{"a result that is an image", pd.APIMessages, chat(`[{"type":"tool_result","content":[{"type":"image","source":{}}]}]`), 225},
		{"instructions and input", pd.APIResponses, `{"instructions":"abcd","input":"efgh"}`, 2},
		{"input items", pd.APIResponses,
			`{"input":[{"role":"user","content":[{"type":"input_text","text":"abcd"},{"type":"input_image"}]},{"content":"efgh"},{"output":1}]}`, 231},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := mustRead(t, c.api, c.body)
			if r.Prompt.Tokens != c.want {
				t.Errorf("got %d tokens, want %d", r.Prompt.Tokens, c.want)
			}
			if got := len(r.Prompt.Blocks); got*blocks.Tokens > r.Prompt.Tokens {
				t.Errorf("%d blocks of %d tokens are more than the prompt", got, blocks.Tokens)
			}
		})
	}
}

func TestPromptBlocksAreWhole(t *testing.T) {
	for _, c := range []struct {
		name string
		spec epp.PromptSpec
		body string
		want int
	}{
		{"less than one", blocks, `{"prompt":"` + words(3) + `abc"}`, 0},
		{"exactly one", blocks, `{"prompt":"` + words(4) + `"}`, 1},
		{"two and a tail", blocks, `{"prompt":"` + words(11) + `"}`, 2},
		{"ids", blocks, `{"prompt":[1,2,3,4,5,6,7,8,9]}`, 2},
		{"ids behind a text, which no engine takes", blocks, `{"prompt":["ab",1,2,3,4,5,6,7,8]}`, 2},
		{"the most", epp.PromptSpec{Tokens: 4, Max: 3}, `{"prompt":"` + words(100) + `"}`, 3},
		{"the first of several prompts", blocks, `{"prompt":["` + words(9) + `","` + words(50) + `"]}`, 2},
		{"the first of several in ids", blocks, `{"prompt":[[1,2,3,4],[1,2,3,4,5,6,7,8]]}`, 1},
		{"none wanted", epp.PromptSpec{}, `{"prompt":"` + words(100) + `"}`, 0},
		{"none wanted, of a size", epp.PromptSpec{Tokens: 4}, `{"prompt":"` + words(100) + `"}`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := readBody(post(pd.APICompletions), 0, c.spec, c.body, 0)
			if err != nil || len(r.Prompt.Blocks) != c.want || r.Prompt.BlockTokens != c.spec.Tokens {
				t.Errorf("got %+v, %v; want %d blocks", r, err, c.want)
			}
		})
	}
}

// shared returns how many blocks two prompts have in common, which must all be at the beginning.
func shared(t *testing.T, a, b []uint64) int {
	t.Helper()
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	for _, hash := range a[n:] {
		if slices.Contains(b, hash) {
			t.Errorf("a block behind the first %d is shared", n)
		}
	}
	return n
}

// A hash stands for all of the prompt up to its block's end, for nothing behind it, and for what makes it another prompt
// though its text is the same.
func TestPromptBlocksAreShared(t *testing.T) {
	body := func(members ...string) string { return `{` + strings.Join(members, ",") + `}` }
	chat := func(messages ...string) string { return `"messages":[` + strings.Join(messages, ",") + `]` }
	says := func(role, content string) string { return `{"role":"` + role + `","content":` + content + `}` }
	quote := func(text string) string { return strconv.Quote(text) }
	tools := func(name string) string { return `"tools":[{"function":{"name":"` + name + `"}}]` } // 29 bytes
	picture := func(data string) string { return `[{"type":"image_url","image_url":{"url":"` + data + `"}}]` }
	result := func(data string) string { return `[{"type":"tool_result","content":` + data + `}]` }
	system, question, answer := says("system", quote(words(23))), says("user", quote(words(20))), says("assistant", quote(words(8)))
	for _, c := range []struct {
		name string
		api  pd.API
		a, b string
		want int // blocks of a that b has too, of 4 tokens each
	}{
		{"a longer prompt", pd.APICompletions, `{"prompt":"` + words(9) + `"}`, `{"prompt":"` + words(40) + `"}`, 2},
		{"the first block differs", pd.APICompletions, `{"prompt":"x` + words(9) + `"}`, `{"prompt":"y` + words(9) + `"}`, 0},
		{"the last block differs", pd.APICompletions, `{"prompt":"` + words(8) + `abcdefghijklmnop"}`, `{"prompt":"` + words(8) + `abcdefghijklmnoq"}`, 2},
		{"a list of one", pd.APICompletions, `{"prompt":"` + words(8) + `"}`, `{"prompt":["` + words(8) + `"]}`, 2},
		{"spelled with escapes", pd.APICompletions, `{"prompt":"` + words(8) + `\n\u00e9\/"}`, `{"prompt":"\u0030` + words(8)[1:] + `\u000Aé/"}`, 2},
		{"ids and text of the same bytes", pd.APICompletions, `{"prompt":"` + strings.Repeat("a", 32) + `"}`,
			`{"prompt":[` + strings.Repeat("1633771873,", 7) + `1633771873]}`, 0},
		{"ids", pd.APICompletions, `{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12]}`, `{"prompt":[ 1, 2, 3, 4, 5, 6, 7, 8, 9,10,11,13 ]}`, 2},
		{"ids in two ways", pd.APICompletions, `{"prompt":[1,2,3,4]}`, `{"prompt":[[1,2,3,4]]}`, 1},
		{"a conversation that goes on", pd.APIChat, body(chat(system, question)), body(chat(system, question, answer, question)), 11},
		{"the same said by another", pd.APIChat, body(chat(says("user", quote(words(20))))), body(chat(says("tool", quote(words(20))))), 0},
		{"the same text in two messages", pd.APIChat, body(chat(says("user", `"0000000000000000"`))),
			body(chat(says("user", `"00000000"`), `{"content":"00000000"}`)), 0},
		{"the same text in two parts", pd.APIChat, body(chat(says("user", `[{"text":"000000000000"},{"text":"0000"}]`))),
			body(chat(says("user", `[{"text":"0000"},{"text":"000000000000"}]`))), 0},
		{"the same text divided elsewhere", pd.APIChat, body(chat(says("", `[{"text":"00"},{"text":"00000000000000"}]`))),
			body(chat(says("", `[{"text":"000"},{"text":"0000000000000"}]`))), 0},
		{"another model", pd.APIChat, body(`"model":"a"`, chat(system)), body(`"model":"b"`, chat(system)), 0},
		{"the model last", pd.APIChat, body(`"model":"a"`, chat(system)), body(chat(system), `"model":"\u0061"`), 6},
		{"another salt", pd.APIChat, body(`"cache_salt":"a"`, chat(system)), body(`"cache_salt":"b"`, chat(system)), 0},
		{"no salt", pd.APIChat, body(chat(system), `"cache_salt":""`), body(chat(system)), 0},
		{"the salt last", pd.APIChat, body(`"cache_salt":"a"`, chat(system)), body(chat(system), `"cache_salt":"a"`), 6},
		{"other tools", pd.APIChat, body(tools("abc"), chat(system)), body(tools("xyz"), chat(system)), 0},
		{"no tools", pd.APIChat, body(chat(system)), body(`"tools":null`, chat(system)), 6},
		{"the tools last", pd.APIChat, body(tools("abc"), chat(system)), body(chat(system), tools("abc")), 7},
		{"tools, and a conversation that goes on", pd.APIChat, body(chat(system, question), tools("abc")),
			body(chat(system, question, answer), tools("abc")), 12},
		{"another picture", pd.APIChat, body(chat(system, says("user", picture("abc")))), body(chat(system, says("user", picture("xyz")))), 6},
		{"the same picture", pd.APIChat, body(chat(says("user", picture("abc")), answer)), body(chat(says("user", picture("abc")), question)), 56},
		{"another call", pd.APIChat, body(chat(system, `{"role":"assistant","tool_calls":["abcdefgh"]}`)),
			body(chat(system, `{"role":"assistant","tool_calls":["abcdefgx"]}`)), 6},
		{"system and messages", pd.APIMessages, body(`"system":`+quote(words(8)), chat(question)), body(`"system":`+quote(words(8)), chat(answer)), 2},
		{"system last", pd.APIMessages, body(`"system":`+quote(words(8)), chat(question)), body(chat(question), `"system":`+quote(words(8))), 7},
		{"another end of the system prompt", pd.APIMessages, body(`"system":"a"`, chat(question)), body(`"system":"b"`, chat(question)), 0},
		{"another result", pd.APIMessages, body(chat(question, says("user", result(`[{"type":"document","source":"a"}]`)))),
			body(chat(question, says("user", result(`[{"type":"document","source":"b"}]`)))), 5},
		{"a result as text or as part", pd.APIMessages, body(chat(says("user", result(quote(words(20)))))),
			body(chat(says("user", result(`[{"type":"text","text":`+quote(words(20))+`}]`)))), 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := mustRead(t, c.api, c.a), mustRead(t, c.api, c.b)
			if got := shared(t, a.Prompt.Blocks, b.Prompt.Blocks); got != c.want {
				t.Errorf("%d blocks shared of %d and %d, want %d", got, len(a.Prompt.Blocks), len(b.Prompt.Blocks), c.want)
			}
		})
	}
}

// Chat templates make another prompt of the same text.
func TestPromptBlocksDifferByAPI(t *testing.T) {
	a := mustRead(t, pd.APIChat, `{"messages":[{"content":"`+words(8)+`"}]}`)
	b := mustRead(t, pd.APICompletions, `{"prompt":"`+words(8)+`"}`)
	if shared(t, a.Prompt.Blocks, b.Prompt.Blocks) != 0 {
		t.Error("shared")
	}
}

func TestPromptBlocksRepeatNothing(t *testing.T) {
	for _, text := range []string{strings.Repeat("a", 16_000), strings.Repeat(`\n`, 1600)} {
		r := mustRead(t, pd.APICompletions, `{"prompt":"`+text+`"}`)
		all := slices.Clone(r.Prompt.Blocks)
		slices.Sort(all)
		if len(all) != blocks.Max || len(slices.Compact(all)) != blocks.Max {
			t.Errorf("%d different blocks of %d", len(slices.Compact(all)), blocks.Max)
		}
	}
}

func TestPromptBlocksAreLimitedInAll(t *testing.T) {
	text := `{"tools":"` + words(8) + `","messages":[{"content":"` + words(50) + `"}]}`
	all := mustRead(t, pd.APIChat, text).Prompt.Blocks
	some, err := readBody(post(pd.APIChat), 0, epp.PromptSpec{Tokens: 4, Max: 5}, text, 0)
	if err != nil || len(all) != 14 || !slices.Equal(some.Prompt.Blocks, all[:5]) {
		t.Errorf("got %d of %d blocks, %v", len(some.Prompt.Blocks), len(all), err)
	}
}

// A request may hold no more images than bytes allow, but each stands for many tokens: hashing ends at the most blocks.
func TestPromptOfManyImages(t *testing.T) {
	const n = 20_000
	r := mustRead(t, pd.APIChat, `{"messages":[{"content":[`+strings.Repeat(`{"type":"image"},`, n-1)+`{"type":"image"}]}]}`)
	if r.Prompt.Tokens != n*225 || len(r.Prompt.Blocks) != blocks.Max {
		t.Errorf("got %d tokens, %d blocks", r.Prompt.Tokens, len(r.Prompt.Blocks))
	}
}

// TestPromptIDs: the token ids of the first prompt are kept, as many as are needed, where the request has nothing else.
func TestPromptIDs(t *testing.T) {
	for _, c := range []struct {
		name   string
		api    pd.API
		body   string
		want   []uint32
		tokens int
	}{
		{"completions", pd.APICompletions, `{"prompt":[1, 20,300]}`, []uint32{1, 20, 300}, 3},
		{"in a list", pd.APICompletions, `{"prompt":[[1,2,3]]}`, []uint32{1, 2, 3}, 3},
		{"the first of several", pd.APICompletions, `{"prompt":[[1,2],[3,4]]}`, []uint32{1, 2}, 4},
		{"more than are needed", pd.APICompletions, `{"prompt":[1,2,3,4,5,6,7]}`, []uint32{1, 2, 3, 4, 5}, 7},
		{"text", pd.APICompletions, `{"prompt":"abcd"}`, nil, 1},
		{"behind a text, which no engine takes", pd.APICompletions, `{"prompt":["abcd",1,2]}`, nil, 3},
		{"in /inference/v1/generate", pd.APIGenerate, `{"token_ids":[7,8]}`, []uint32{7, 8}, 2},
		{"in SGLang's call", pd.APISGLang, `{"input_ids":[7,8]}`, []uint32{7, 8}, 2},
		{"of an embedding", pd.APIEmbeddings, `{"input":[7,8]}`, []uint32{7, 8}, 2},
		{"a chat has none", pd.APIChat, `{"messages":[{"role":"user","content":"abcd"}]}`, nil, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := post(c.api)
			if c.api == pd.APISGLang {
				h = sglang()
			}
			for chunk := range 8 {
				r, err := readBody(h, 0, epp.PromptSpec{IDs: 5}, c.body, chunk)
				if err != nil || !slices.Equal(r.Prompt.IDs, c.want) || r.Prompt.Tokens != c.tokens {
					t.Fatalf("in chunks of %d: got %+v, %v; want %v of %d", chunk, r, err, c.want, c.tokens)
				}
			}
			if r, err := readBody(h, 0, blocks, c.body, 0); err != nil || r.Prompt.IDs != nil {
				t.Errorf("none are needed: got %+v, %v", r, err)
			}
		})
	}
}

// TestPromptIDsAreNotThoseBefore: a reader that is used again keeps nothing of the request before.
func TestPromptIDsAreNotThoseBefore(t *testing.T) {
	var r read.Reader
	for _, c := range []struct {
		body string
		want int
	}{{`{"prompt":[1,2,3]}`, 3}, {`{"prompt":"abcd"}`, 0}, {`{"prompt":[1]}`, 1}} {
		if got := readAll(t, &r, post(pd.APICompletions), epp.PromptSpec{IDs: 5}, []byte(c.body), 100); len(got.Prompt.IDs) != c.want {
			t.Errorf("%s: got %v", c.body, got.Prompt.IDs)
		}
	}
}

func TestPromptSalt(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"none", `{"prompt":[1]}`, ""},
		{"a salt", `{"prompt":[1],"cache_salt":"a\u002fb"}`, "a/b"},
		{"before the prompt", `{"cache_salt":"a","prompt":[1]}`, "a"},
		{"null", `{"prompt":[1],"cache_salt":null}`, ""},
		{"no text", `{"prompt":[1],"cache_salt":7}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := readBody(post(pd.APICompletions), 0, epp.PromptSpec{IDs: 5}, c.body, 0)
			if err != nil || r.Prompt.Salt != c.want {
				t.Errorf("got %+v, %v; want the salt %q", r, err, c.want)
			}
		})
	}
}
