package read_test

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// call is the head of a call of gRPC, where such calls are to be read.
func call(api pd.API) read.Head {
	path := api.Path()
	if !strings.HasPrefix(path, "/") {
		path = "/google.cloud.aiplatform.v1beta1." + path
	}
	return read.Head{Method: http.MethodPost, Path: path, ContentType: "application/grpc+proto", Reads: epp.NewAPISet(pd.GRPCAPIs()...)}
}

// framed returns a message as the body of a call.
func framed(fields ...string) string {
	m := strings.Join(fields, "")
	return "\x00" + string(binary.BigEndian.AppendUint32(nil, uint32(len(m)))) + m
}

func field(number protowire.Number, value string) string {
	return string(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value))
}

func flag(number protowire.Number, value uint64) string {
	return string(protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), value))
}

// ids returns the field of a message of vLLM with a prompt of token ids.
func ids(all ...uint64) string {
	var list []byte
	for _, id := range all {
		list = protowire.AppendVarint(list, id)
	}
	return field(2, field(1, "the text that the ids are of")+field(2, string(list)))
}

// upTo returns the ids 1 to n.
func upTo(n int) (all []uint64) {
	for i := range n {
		all = append(all, uint64(i+1))
	}
	return all
}

// carried returns the body of a call of Vertex AI with a text of JSON.
func carried(json string) string {
	return framed(field(1, "projects/p/endpoints/e"), field(2, field(1, "application/json")+field(2, json)))
}

// item returns the fields of vLLM's mm_inputs for an item at an offset.
func item(offset uint64, hash string) string {
	return field(5, flag(1, offset)+flag(2, 2)) + field(6, hash)
}

// TestGRPC: what is read of calls of gRPC, in chunks of any size.
func TestGRPC(t *testing.T) {
	for _, c := range []struct {
		name   string
		api    pd.API
		body   string
		tokens int
		model  string
		stream bool
	}{
		{"token ids", pd.APIVLLMGenerate, framed(field(1, "id"), ids(upTo(300)...), field(4, flag(8, 16)), flag(5, 1)), 300, "", true},
		{"single token ids", pd.APIVLLMGenerate, framed(field(2, flag(2, 1)+flag(2, 99999))), 2, "", false},
		{"no token ids", pd.APIVLLMGenerate, framed(ids()), 0, "", false},
		{"a text", pd.APIVLLMGenerate, framed(field(3, words(9)), flag(5, 0)), 9, "", false},
		{"token ids to embed", pd.APIVLLMEmbed, framed(field(1, "id"), ids(upTo(7)...)), 7, "", false},
		{"a chat", pd.APIVertexChat, carried(`{"messages":[{"content":"` + words(5) + `"}],"model":"m","stream":true}`), 5, "m", true},
		{"a response", pd.APIVertexStream, carried(`{"input":"` + words(5) + `"}`), 5, "", false},
		{"a raw response", pd.APIVertexRaw, carried(`{"input":"` + words(5) + `","model":"m"}`), 5, "m", false},
		{"a raw chat, which llm-d does not read", pd.APIVertexRaw, carried(`{"messages":[{"content":"` + words(5) + `"}]}`), 5, "", false},
		{"a raw completion, which llm-d does not read", pd.APIVertexRaw, carried(`{"prompt":[1,2,3],"n":2}`), 3, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var first *epp.Request
			for size := 1; size < len(c.body); size++ {
				r, err := readBody(call(c.api), 0, blocks, c.body, size)
				if err != nil {
					t.Fatal(err)
				}
				if r.API != c.api || r.Prompt.Tokens != c.tokens || r.Model != c.model || r.Stream != c.stream || r.Fit != request.FitLocal || r.RequireModel() != nil {
					t.Fatalf("in chunks of %d: %+v", size, r)
				}
				if first == nil {
					first = r
				}
				if !same(r, first) || len(r.Prompt.Blocks) != min(c.tokens/blocks.Tokens, blocks.Max) {
					t.Fatalf("in chunks of %d: %+v, want %+v", size, r, first)
				}
			}
		})
	}
}

// TestGRPCRefuses: what is refused, in the words of the refusal.
func TestGRPCRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		api    pd.API
		body   string
		reason pd.Reason
		says   string
	}{
		{"no message", pd.APIVLLMGenerate, "", pd.BadRequest, "no input"},
		{"half a header", pd.APIVLLMGenerate, "\x00\x00", pd.BadRequest, "truncated"},
		{"half a message", pd.APIVLLMGenerate, framed(field(3, "hello"))[:8], pd.BadRequest, "truncated"},
		{"two messages", pd.APIVLLMGenerate, framed(field(3, "a")) + framed(field(3, "b")), pd.DuplicateKey, "twice"},
		{"a second, empty message", pd.APIVLLMGenerate, framed(field(3, "a")) + framed(), pd.BadRequest, "several"},
		{"JSON", pd.APIVLLMGenerate, `{"text":"hello"}`, pd.BadRequest, "malformed"},
		{"compressed", pd.APIVLLMGenerate, "\x01" + framed(field(3, "a"))[1:], pd.BadRequest, "without compression"},
		{"too large", pd.APIVLLMGenerate, framed(field(3, strings.Repeat("x", 2000))), pd.TooLarge, "larger"},
		{"said to be too large", pd.APIVLLMGenerate, "\x00\x7f\xff\xff\xff", pd.TooLarge, "larger"},
		{"no input", pd.APIVLLMGenerate, framed(flag(5, 1)), pd.BadRequest, "no input"},
		{"a text to embed", pd.APIVLLMEmbed, framed(field(3, "hello")), pd.BadRequest, "no input"},
		{"a text and ids", pd.APIVLLMGenerate, framed(ids(1), field(3, "a")), pd.DuplicateKey, "twice"},
		{"two lists of ids", pd.APIVLLMGenerate, framed(ids(1), ids(2)), pd.DuplicateKey, "twice"},
		{"transfer parameters", pd.APIVLLMGenerate, framed(ids(1), field(8, `{"do_remote_prefill":true}`)), pd.BadRequest, "kv_transfer_params"},
		{"older transfer parameters", pd.APIVLLMGenerate, framed(ids(1), field(6, field(1, "10.0.0.1"))), pd.BadRequest, "kv_transfer_params"},
		{"a rank", pd.APIVLLMGenerate, framed(ids(1), flag(9, 1)), pd.BadRequest, "data_parallel_rank"},
		{"no JSON", pd.APIVertexChat, framed(field(1, "e")), pd.BadRequest, "no JSON"},
		{"an empty text of JSON", pd.APIVertexChat, carried(""), pd.BadRequest, "no body"},
		{"broken JSON", pd.APIVertexRaw, carried(`{"input":`), pd.BadRequest, "not valid JSON"},
		{"a list", pd.APIVertexStream, carried(`[]`), pd.BadRequest, "not a JSON object"},
		{"two texts of JSON", pd.APIVertexChat, carried(`{}`) + carried(`{}`), pd.DuplicateKey, "twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{0, 1, 3} {
				_, err := readBody(call(c.api), 1000, blocks, c.body, size)
				if err == nil || pd.AsRefusal(err).Reason != c.reason || !strings.Contains(err.Error(), c.says) {
					t.Errorf("in chunks of %d: %v", size, err)
				}
			}
		})
	}
}

// TestGRPCPrefix: which blocks two prompts have in common.
func TestGRPCPrefix(t *testing.T) {
	generate := func(fields ...string) []uint64 {
		r, err := readBody(call(pd.APIVLLMGenerate), 0, blocks, framed(fields...), 0)
		if err != nil {
			t.Fatal(err)
		}
		return r.Prompt.Blocks
	}
	image := func(offset uint64, hash string) string { return field(7, item(offset, hash)) }
	for _, c := range []struct {
		name string
		a, b []uint64
		want int
	}{
		{"a longer prompt", generate(ids(upTo(20)...)), generate(ids(upTo(40)...)), 5},
		{"packed or not", generate(ids(1, 2, 3, 4)), generate(field(2, flag(2, 1)+flag(2, 2)+flag(2, 3)+flag(2, 4))), 1},
		{"another id in the third block", generate(ids(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)), generate(ids(1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9)), 2},
		{"the same text", generate(field(3, words(8))), generate(flag(5, 1), field(3, words(8))), 2},
		{"a text and ids", generate(field(3, "aaaabbbb")), generate(ids(0x61616161, 0x62626262, 0, 0)), 0},
		{"the same image", generate(ids(upTo(20)...), image(9, "x")), generate(image(9, "x"), ids(upTo(20)...)), 5},
		{"another image in the third block", generate(ids(upTo(20)...), image(9, "x")), generate(ids(upTo(20)...), image(9, "y")), 2},
		{"an image where there is none", generate(ids(upTo(20)...), image(16, "x")), generate(ids(upTo(20)...)), 4},
		{"images in another order", generate(ids(upTo(20)...), field(7, item(1, "x")+item(13, "y"))), generate(ids(upTo(20)...), field(7, item(13, "y")+item(1, "x"))), 5},
	} {
		if got := shared(t, c.a, c.b); got != c.want {
			t.Errorf("%s: %d blocks are shared, want %d", c.name, got, c.want)
		}
	}
	r, err := readBody(call(pd.APIVLLMGenerate), 0, blocks, framed(ids(upTo(20)...), field(7, item(1, "x")+item(5, "x")+item(9, "y"))), 0)
	if err != nil || len(r.Prompt.Media) != 2 {
		t.Errorf("%+v, %v; want two different items", r, err)
	}
}

// TestGRPCPassesOn: the body is passed on as it came, whatever the pool's policy says about the model.
func TestGRPCPassesOn(t *testing.T) {
	body := carried(`{"model":"alias","messages":[]}`)
	for _, size := range []int{0, 1} {
		if r, out, err := rewrite(call(pd.APIVertexChat), aliases, body, size); err != nil || string(out) != body || r.Model != "alias" {
			t.Errorf("%q, %+v, %v", out, r, err)
		}
	}
}

// TestGRPCUnread: which calls are passed through unread.
func TestGRPCUnread(t *testing.T) {
	unlisted, plain, other := call(pd.APIVLLMGenerate), call(pd.APIVLLMGenerate), call(pd.APIVLLMGenerate)
	unlisted.Reads, plain.ContentType, other.Path = 0, "application/json", "/vllm.grpc.engine.VllmEngine/GetModelInfo"
	bidirectional := call(pd.APIVertexRaw)
	bidirectional.Path = "/google.cloud.aiplatform.v1.PredictionService/StreamingRawPredict"
	web := call(pd.APIVLLMGenerate)
	web.ContentType = "application/grpc-web"
	for name, h := range map[string]read.Head{"no parser listed": unlisted, "not gRPC": plain, "another call": other, "a call of several messages": bidirectional, "gRPC-Web": web} {
		if r, err := readBody(h, 0, blocks, "anything", 0); err != nil || r.API != pd.APIOther {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestGRPCAllocatesNothing(t *testing.T) {
	body := []byte(framed(ids(upTo(8000)...), flag(5, 1)))
	var r read.Reader
	h := call(pd.APIVLLMGenerate)
	use := func() { readAll(t, &r, h, epp.PromptSpec{Tokens: 16, Max: 2048}, body, 1000) }
	use()
	if n := testing.AllocsPerRun(20, use); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Whatever the chunks, a call is read or refused alike.
func FuzzGRPC(f *testing.F) {
	for which := range len(pd.GRPCAPIs()) {
		f.Add(uint8(which), framed(ids(upTo(20)...), field(7, item(3, "x")), flag(5, 1)), []byte{3})
		f.Add(uint8(which), framed(field(3, words(9))), []byte{1, 7})
		f.Add(uint8(which), carried(`{"messages":[{"content":"hello"}],"model":"m"}`), []byte{5, 1})
	}
	f.Fuzz(func(t *testing.T, which uint8, text string, sizes []byte) {
		h := call(pd.GRPCAPIs()[int(which)%len(pd.GRPCAPIs())])
		want, err := readBody(h, 0, blocks, text, 0)
		var r read.Reader
		r.Reset(h, 0, blocks)
		var gotErr error
		for _, chunk := range cut([]byte(text), sizes) {
			if gotErr = r.Write(chunk); gotErr != nil {
				break
			}
		}
		var got *epp.Request
		if gotErr == nil {
			got, gotErr = r.Close(nil)
		}
		if !same(got, want) || fmt.Sprint(err) != fmt.Sprint(gotErr) {
			t.Fatalf("%q\nwhole: %+v, %v\nparts: %+v, %v", text, want, err, got, gotErr)
		}
		if got != nil && string(slices.Concat(r.Segments()...)) != text {
			t.Fatalf("%q is passed on as %q", text, slices.Concat(r.Segments()...))
		}
	})
}

// BenchmarkGRPC reads whole calls in chunks of 16 KiB, as Envoy sends them.
func BenchmarkGRPC(b *testing.B) {
	chat := chatBody(512<<10, "It was the best of times, it was the wor")
	for _, v := range []struct {
		name string
		api  pd.API
		body string
	}{
		{"token-ids-1000", pd.APIVLLMGenerate, framed(ids(upTo(1000)...))},
		{"token-ids-100000", pd.APIVLLMGenerate, framed(ids(upTo(100_000)...))},
		{"text-512K", pd.APIVLLMGenerate, framed(field(3, strings.Repeat("x", 512<<10)))},
		{"chat-512K", pd.APIVertexChat, carried(string(chat))},
	} {
		b.Run(v.name, func(b *testing.B) {
			var r read.Reader
			body := []byte(v.body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				readAll(b, &r, call(v.api), epp.PromptSpec{Tokens: 16, Max: 1 << 20}, body, 16<<10)
			}
		})
	}
}
