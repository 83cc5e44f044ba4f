package continuation

import "testing"

func TestLogprobsOfChat(t *testing.T) {
	const two = `{"text_offset":[0,3],"token_logprobs":[-0.25,-9999.0],"tokens":[" é","\n"],"top_logprobs":[{" é":-0.25,"a":-1.5},{"\n":-9999.0,"b":-0.1,"c":-2}]}`
	for name, c := range map[string]struct {
		of                    string
		alternatives, without int
		want                  string
		err                   error
	}{
		"none": {two, 0, 0, `{"content":[{"token":" é","logprob":-0.25,"bytes":[32,195,169],"top_logprobs":[]},{"token":"\n","logprob":-9999.0,"bytes":[10],"top_logprobs":[]}]}`, nil},
		"two": {two, 2, 0, `{"content":[{"token":" é","logprob":-0.25,"bytes":[32,195,169],"top_logprobs":[{"token":" é","logprob":-0.25,"bytes":[32,195,169]},{"token":"a","logprob":-1.5,"bytes":[97]}]},` +
			`{"token":"\n","logprob":-9999.0,"bytes":[10],"top_logprobs":[{"token":"\n","logprob":-9999.0,"bytes":[10]},{"token":"b","logprob":-0.1,"bytes":[98]}]}]}`, nil},
		"without the last":     {two, 0, 1, `{"content":[{"token":" é","logprob":-0.25,"bytes":[32,195,169],"top_logprobs":[]}]}`, nil},
		"too few alternatives": {two, 3, 0, "", errAmbiguous},
		"one of two texts":     {`{"token_logprobs":[-3],"tokens":["x"],"top_logprobs":[{"x":-3,"\ufffd":-1}]}`, 2, 0, "", errAmbiguous},
		"the most likely":      {`{"token_logprobs":[-1],"tokens":[""],"top_logprobs":[{"":-1,"\ufffd":-3}]}`, 2, 0, `{"content":[{"token":"","logprob":-1,"bytes":[],"top_logprobs":[{"token":"","logprob":-1,"bytes":[]},{"token":"` + "\ufffd" + `","logprob":-3,"bytes":[239,191,189]}]}]}`, nil},
		"lists differ":         {`{"token_logprobs":[],"tokens":["x"],"top_logprobs":[{}]}`, 0, 0, "", errLogprobs},
		"no list":              {`{"tokens":3}`, 0, 0, "", errLogprobs},
		"no object":            {`{"token_logprobs":[-1],"tokens":["x"],"top_logprobs":[3]}`, 1, 0, "", errLogprobs},
		"no number":            {`{"token_logprobs":[-1],"tokens":["x"],"top_logprobs":[{"x":"y"}]}`, 1, 0, "", errLogprobs},
		"cut":                  {`{"token_logprobs":[-1],"tokens":["x"],"top_logprobs":[{"x"]}`, 1, 0, "", errLogprobs},
	} {
		if got, err := chatLogprobs([]byte(c.of), c.alternatives, c.without); string(got) != c.want || err != c.err {
			t.Errorf("%s: %s, %v\nwant\n%s, %v", name, got, err, c.want, c.err)
		}
	}
}
