package request

import "github.com/tandem-serving/tandem/pd/body"

// Replaced returns the request with another body, which the caller has made of Local's. Members that clients may not send stay in
// it: they are the caller's. The error is that of the scan.
func (r *Request) Replaced(b *body.Body) (*Request, error) {
	made := &Request{API: r.API, Body: b, scan: new(body.Scanner), table: &Table{members: r.table.members, strip: make([]bool, len(r.table.strip))}}
	made.scan.Reset(made.table.members, body.Limits{}, nil)
	for _, segment := range b.Segments() {
		if _, err := made.scan.Write(segment); err != nil {
			return nil, err
		}
	}
	return made, made.scan.Close()
}
