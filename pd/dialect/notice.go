package dialect

import (
	"strings"
	"unicode/utf8"
)

// Notices are what a vLLM engine with the NIXL connector takes as notifications of its agents, from whomever: measured on
// vLLM 0.32.0, which frees the blocks within 0.1 s of a release, and keeps them for as long as heartbeats come. An id that
// it does not know is passed over in a heartbeat; in a release it is counted as a notification after expiry, and logged as
// an error. So nobody should be released twice.

// MaxNoticeID is the longest request id that notices name, in bytes. The engine makes it of a word, the X-Request-Id of the
// leg and a suffix; measured ones have up to 50.
const MaxNoticeID = 1 << 10

// HeartbeatFrame is what a heartbeat has beside the ids and their commas, in bytes.
const HeartbeatFrame = len(heartbeat)

const heartbeat = "HB:"

// nixlNotices implements Notices.
type nixlNotices struct{}

// Names implements Notices.
func (nixlNotices) Names(requestID string) bool { return Noticeable(requestID) }

// Release implements Notices.
func (nixlNotices) Release(requestID string) []byte {
	notice, _ := ReleaseNotice(requestID)
	return notice
}

// Heartbeats implements Notices.
func (nixlNotices) Heartbeats(requestIDs []string, size int) (messages [][]byte) {
	first, length := 0, HeartbeatFrame
	flush := func(end int) {
		if message, ok := HeartbeatNotice(requestIDs[first:end]); ok {
			messages = append(messages, message)
		}
		first, length = end, HeartbeatFrame
	}
	for i, id := range requestIDs {
		if length += len(id) + 1; length > size {
			flush(i)
			length += len(id) + 1
		}
	}
	flush(len(requestIDs))
	return messages
}

// Noticeable reports whether notices can name a request. Its id holds what a client sent as X-Request-Id: a comma in it would
// make a heartbeat name two others, and what is not text stops the engine's reader of notices.
func Noticeable(requestID string) bool {
	return requestID != "" && len(requestID) <= MaxNoticeID && utf8.ValidString(requestID) &&
		!strings.HasPrefix(requestID, heartbeat) && strings.IndexFunc(requestID, unfit) < 0
}

func unfit(r rune) bool { return r == ',' || r < ' ' || r >= 0x7f && r < 0xa0 }

// ReleaseNotice tells a rank of the engine that nobody will read the hand-off of a request: "<id>:1", where 1 is the number
// of readers to wait for, this one being the only. Not ok if the request is not Noticeable.
func ReleaseNotice(requestID string) (notice []byte, ok bool) {
	if !Noticeable(requestID) {
		return nil, false
	}
	return append([]byte(requestID), ":1"...), true
}

// HeartbeatNotice tells a rank of the engine that the hand-offs of these requests will be read: "HB:<id>,<id>". Each is then
// kept for two thirds of kv_lease_duration from its arrival on, or longer if it was to be anyway. Not ok if there is no
// request, or one that is not Noticeable.
func HeartbeatNotice(requestIDs []string) (notice []byte, ok bool) {
	size := len(heartbeat) + len(requestIDs)
	for _, id := range requestIDs {
		if !Noticeable(id) {
			return nil, false
		}
		size += len(id)
	}
	if len(requestIDs) == 0 {
		return nil, false
	}
	notice = append(make([]byte, 0, size), heartbeat...)
	for i, id := range requestIDs {
		if i > 0 {
			notice = append(notice, ',')
		}
		notice = append(notice, id...)
	}
	return notice, true
}
