"""What every gRPC channel and server of ours is made with."""

# An order to 2,048 nodes of 8 ranks, or their status, has some MB: gRPC takes 4 by default. Texts are bounded (host/text.py).
MESSAGE_BYTES_MAX = 64 << 20
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)
SUPERVISOR_SERVICE = "deadpool.Supervisor"  # as in proto/messages/agent.proto
NO_SUPERVISOR = "this relay has no supervisor now"  # nor has anybody else
CUT_OFF = "this relay does not reach the supervisor"
CHANNEL_OPTIONS = (*SERVER_OPTIONS, ("grpc.enable_http_proxy", 0))
