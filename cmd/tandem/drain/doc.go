// Package drain implements the command tandem drain, which waits until a terminating pod has no work left. It is the preStop
// hook of an engine's container: an engine that gets SIGTERM cuts its streams at once and loses the KV caches that no decode
// engine has pulled yet.
//
// It takes the addresses of the pod's own parts, or of those of the leader of its group: workers of an engine that spans several pods must not
// end before the leader has no work. It prints a line for each change of the remaining work, and returns exit
// code 0 once there is none, or 1 at the timeout. A part that has ended, or whose pod has, has no work. Two checks in a row must find no work,
// since a request may just be on its way between sidecar and engine.
//
// With --install it only copies its own program to a folder that containers without the program share.
//
// It ends nothing and takes no pod out of rotation, with two exceptions: it has the streams of a sidecar go on at other engines, if it
// is told to, and it makes an Envoy fail its health checks and ask its clients to reconnect elsewhere, because no other component does
// that.
package drain
