package dialect_test

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

// priming is what a prefill engine is asked with.
const priming = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// handoff is what a prefill engine offers, with members that must survive as they are.
const handoff = `{"do_remote_prefill":true,"do_remote_decode":false, "remote_block_ids":[[1,2, 3,4]],"remote_engine_id":"e-1",` +
	`"remote_request_id":"cmpl-1-0-8a7a7f67","remote_host":"10.0.0.7","remote_port":5601,"remote_num_tokens":100,` +
	`"seed":12345678901234567890123,"name":"\u00e9","remote_prefill_cached_tokens":96}`

// nixl returns the dialect under test.
func nixl(t testing.TB) dialect.Dialect {
	t.Helper()
	d, ok := dialect.New("nixlv2", dialect.Options{Lease: 30 * time.Second})
	if !ok {
		t.Fatal("no dialect nixlv2")
	}
	return d
}

// attempt returns a try of a request at a prefill pod.
func attempt(t testing.TB, d dialect.Dialect, r *request.Request) dialect.Attempt {
	t.Helper()
	a, err := d.Attempt(t.Context(), r, pd.Target{Host: "10.0.0.7", Port: 8000})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// handedOff is what decode gets of a request for which prefill answered with handoff.
func handedOff(t testing.TB, r *request.Request) dialect.Handoff {
	t.Helper()
	h, err := attempt(t, nixl(t), r).Accept([]byte(`{"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":96}},"kv_transfer_params":` + handoff + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// scan holds segments as the sidecar does and scans them.
func scan(api pd.API, segments ...[]byte) (*request.Request, *body.Scanner, error) {
	var b body.Body
	s := &body.Scanner{}
	s.Reset(request.Base.Members(), body.Limits{}, nil)
	for _, segment := range segments {
		if _, err := s.Write(segment); err != nil {
			return nil, nil, err
		}
		b.Append(segment)
	}
	if err := s.Close(); err != nil {
		return nil, nil, err
	}
	return request.Base.Request(api, &b, s), s, nil
}

func asked(t testing.TB, api pd.API, in string) *request.Request {
	t.Helper()
	r, _, err := scan(api, []byte(in))
	if err != nil {
		t.Fatalf("%s: %v", in, err)
	}
	return r
}

// text joins a leg, whose length must be what it says.
func text(t testing.TB, l request.Payload, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	joined := bytes.Join(l.Segments, nil)
	if int64(len(joined)) != l.Length {
		t.Fatalf("%d bytes of a leg that says %d: %s", len(joined), l.Length, joined)
	}
	return string(joined)
}

// legs are the three bodies that one request may become.
type legs struct{ prefill, decode, local string }

func allLegs(t testing.TB, r *request.Request) legs {
	t.Helper()
	p, perr := attempt(t, nixl(t), r).Prefill()
	e, eerr := handedOff(t, r).Decode()
	l, lerr := r.Local()
	return legs{text(t, p, perr), text(t, e, eerr), text(t, l, lerr)}
}

// member is one member of an object as it stands in the text: its name decoded, its value raw.
type member struct{ name, value string }

// members splits an object with encoding/json, which shares no code with what is tested.
func members(t testing.TB, object string) []member {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(object)))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		t.Fatalf("%s begins with %v, %v", object, open, err)
	}
	var list []member
	for d.More() {
		name, err := d.Token()
		if err != nil {
			t.Fatalf("%s: %v", object, err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			t.Fatalf("%s: %v", object, err)
		}
		list = append(list, member{name.(string), string(value)})
	}
	if _, err := d.Token(); err != nil {
		t.Fatalf("%s: %v", object, err)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Fatalf("%s goes on after the object: %v", object, err)
	}
	return list
}

// without leaves members out.
func without(list []member, names ...string) []member {
	var kept []member
next:
	for _, m := range list {
		for _, name := range names {
			if m.name == name {
				continue next
			}
		}
		kept = append(kept, m)
	}
	return kept
}

// with replaces a member's value where it stands, or adds it at the end.
func with(list []member, name, value string) []member {
	out := append([]member(nil), list...)
	for i := range out {
		if out[i].name == name {
			out[i].value = value
			return out
		}
	}
	return append(out, member{name, value})
}

func has(list []member, name string) bool { return len(without(list, name)) < len(list) }
