package client

import (
	"errors"
	"testing"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The frames of a server, by a letter each: lower case for the request's side, upper case for the answer's.
func frame(letter byte) *extproc.ProcessingResponse {
	body := func(end bool) *extproc.BodyResponse {
		return echo(&extproc.HttpBody{Body: []byte("x"), EndOfStream: end})
	}
	replace := &extproc.HeadersResponse{Response: &extproc.CommonResponse{Status: extproc.CommonResponse_CONTINUE_AND_REPLACE}}
	switch letter {
	case 'h':
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{}}
	case 'b':
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: body(false)}}
	case 'e':
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: body(true)}}
	case 't':
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestTrailers{}}
	case 'n':
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{}}}
	case 'c':
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: replace}}
	case 'H':
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{}}
	case 'B':
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: body(false)}}
	case 'T':
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{}}
	case 'i':
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{}}
	case 'o':
		return &extproc.ProcessingResponse{OverrideMessageTimeout: &durationpb.Duration{Seconds: 1}}
	case 's':
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_StreamedImmediateResponse{}}
	}
	return &extproc.ProcessingResponse{}
}

// sentBefore returns an order in which a request, and perhaps its answer, was sent.
func sentBefore(f Filter, what string) *order {
	o := &order{request: side{duplex: f.requestBody}, response: side{duplex: f.responseBody}}
	for _, letter := range what {
		var err error
		switch letter {
		case 'h':
			err = o.request.sendHeaders(false)
		case 'e':
			err = o.request.sendHeaders(true)
		case 'b':
			err = o.request.sendBody(true)
		case 't':
			err = o.request.sendTrailers()
		case 'H':
			err = o.response.sendHeaders(false)
		case 'T':
			err = o.response.sendTrailers()
		}
		if err != nil {
			panic(err)
		}
	}
	return o
}

func TestOrder(t *testing.T) {
	tests := []struct {
		name     string
		filter   Filter
		sent     string
		answered string
		spurious bool // the last answer is
		complete bool // then
	}{
		{"headers of a request without body", Picker(), "e", "h", false, true},
		{"body of a request without body", Picker(), "e", "he", true, true},
		{"headers and body", Picker(), "hb", "hbbe", false, true},
		{"headers, body to come", Picker(), "hb", "hb", false, false},
		{"body before headers", Picker(), "hb", "b", true, false},
		{"headers twice", Picker(), "hb", "hh", true, false},
		{"body after its end", Picker(), "hb", "heb", true, true},
		{"body not streamed", Picker(), "hb", "hn", true, false},
		{"continue and replace", Picker(), "hb", "c", true, false},
		{"trailers", Picker(), "ht", "hbt", false, true},
		{"trailers to come", Picker(), "ht", "hb", false, false},
		{"trailers after an explicit end", Picker(), "ht", "het", false, true},
		{"body after trailers", Picker(), "ht", "htb", true, true},
		{"trailers before headers", Picker(), "ht", "t", true, false},
		{"trailers twice", Picker(), "ht", "htt", true, true},
		{"trailers of a request without", Picker(), "hb", "ht", true, false},
		{"nothing was sent", Picker(), "", "h", true, false},
		{"answer of a picker stream", Picker(), "hb", "hH", true, false},
		{"immediate answer first", Picker(), "hb", "i", false, false},
		{"immediate answer late", Picker(), "hb", "hbi", false, false},
		{"more time", Picker(), "hb", "ohe", false, true},
		{"nothing", Picker(), "hb", "0", true, false},
		{"streamed immediate answer", Picker(), "hb", "s", true, false},
		{"accounting", Acct(), "hHT", "hHT", false, true},
		{"accounting with a body", Acct(), "hH", "hb", true, true},
		{"accounting with the answer's body", Acct(), "hH", "hHB", true, true},
		{"answer before the request's end", Single(), "hH", "hbH", false, false},
		{"answer's headers before its body", Duplex(), "hbH", "heB", true, true},
		{"answer's body", Duplex(), "hbHT", "heHBT", false, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := sentBefore(test.filter, test.sent)
			var err error
			for i := range len(test.answered) {
				if err != nil {
					t.Fatalf("answer %c: %v", test.answered[i-1], err)
				}
				_, _, err = o.take(frame(test.answered[i]))
			}
			if errors.Is(err, ErrSpurious) != test.spurious || err != nil && !test.spurious {
				t.Errorf("error %v, want spurious %v", err, test.spurious)
			}
			if o.request.complete() != test.complete {
				t.Errorf("complete %v, want %v", o.request.complete(), test.complete)
			}
		})
	}
}

// FuzzOrder: whatever a server sends, it is refused or it is in the one order there is, headers, body, trailers.
func FuzzOrder(f *testing.F) {
	f.Add("hbb", "hbbe")
	f.Add("ht", "hbtT")
	f.Fuzz(func(t *testing.T, sent, answers string) {
		valid := map[string]bool{"": true, "e": true, "h": true, "hb": true, "ht": true, "hbH": true, "htHT": true}
		if !valid[sent] {
			t.Skip("not an order that is sent")
		}
		o := sentBefore(Duplex(), sent)
		reached := -1
		for i := range len(answers) {
			a, _, err := o.take(frame(answers[i]))
			if err != nil {
				if !errors.Is(err, ErrSpurious) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if a.Kind > RequestTrailers || answers[i] == 'o' {
				continue
			}
			if int(a.Kind) < reached || int(a.Kind) == reached && a.Kind != RequestBody {
				t.Fatalf("answers %q were taken", answers[:i+1])
			}
			reached = int(a.Kind)
		}
	})
}
