package request_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// scan keeps segments as the sidecar does and scans them.
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
